"""Differential privacy, and what a method's server must do with for secure aggregation."""
