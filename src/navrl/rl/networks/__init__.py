"""Policy networks in readable PyTorch: encoders by kind of observation, then a trunk and heads."""
