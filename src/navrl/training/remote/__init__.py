"""Collection by workers on other machines: stamped batches, bounded staleness, deadlines."""
