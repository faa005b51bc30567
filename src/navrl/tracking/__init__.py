"""Trackers that may be slow or die while training goes on: a durable queue in the run's folder, and
workers that empty it.
"""
