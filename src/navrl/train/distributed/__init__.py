"""Training over several processes: the group, how the task is split, what is sent."""
