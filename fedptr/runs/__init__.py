"""Runs as folders: plans, checkpoints, the record of every round, summaries, comparisons."""
