"""Classical pilots in the same worlds, with the same sensors: what a learned policy must beat."""
