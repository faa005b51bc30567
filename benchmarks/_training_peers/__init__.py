"""The contestants of the training benchmark: one module each, run as `python -m _training_peers
NAME TASK`.
"""
