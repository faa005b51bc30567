"""Worlds: random and user-made maps, their moving obstacles, and the pool of arrays that kernels
read.
"""
