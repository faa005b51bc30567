"""Latency compensation: what a robot measured, carried forward to when its next command acts."""
