"""Train and evaluate from Python: the functions that a notebook and the commands call."""
