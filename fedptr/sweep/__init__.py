"""Tuning: which of several settings is best on held-out training samples, as runs of the resumable queue."""
