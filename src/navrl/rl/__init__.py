"""Policies and learning: torch, and nothing of the simulator or of files."""
