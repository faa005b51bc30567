"""Policy networks in readable PyTorch."""
