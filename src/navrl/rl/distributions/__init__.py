"""Action distributions over the unit cube: sample, log_prob, entropy."""
