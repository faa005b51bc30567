"""What a training writes: checkpoints, batches, and models for the registry."""
