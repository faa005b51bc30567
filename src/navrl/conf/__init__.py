"""The YAML side of the configuration, read by Hydra."""
