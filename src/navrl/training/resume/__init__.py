"""Where a training starts: a new run, an earlier run, a checkpoint or a model."""
