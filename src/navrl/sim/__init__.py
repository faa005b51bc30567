"""The simulator: drones, LiDAR, static and moving obstacles, in one fused kernel over
environments.
"""
