"""Reproduces the paper's tables and figures by name: recipes, their runs, and their tables and curves."""
