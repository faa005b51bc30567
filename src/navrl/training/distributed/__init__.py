"""Training over several processes: their collectives and messages."""
