"""Compiled code: one step of a batch of drones, from the velocity command to the observation and
reward.
"""
