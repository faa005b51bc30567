"""Compiled code: one step of a batch of drones, from velocity commands to rewards."""
