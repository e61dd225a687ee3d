"""Differential privacy, and whether sums of replies suffice for a method, as secure aggregation requires."""
