"""Policies and algorithms in torch: networks, collection, PPO, SAC. No simulator, no files."""
