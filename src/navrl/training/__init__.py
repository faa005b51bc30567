"""Training: the loop, and what it leaves behind and shows."""
