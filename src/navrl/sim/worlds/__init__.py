"""Worlds: random and user-made maps, moving obstacles, and the pool of arrays for the kernels."""
