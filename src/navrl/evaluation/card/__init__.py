"""The robustness card of a policy: its success under worse sensors, vehicles and traffic."""
