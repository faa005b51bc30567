"""The local registry of models: versions, aliases, stages and where each model came from."""
