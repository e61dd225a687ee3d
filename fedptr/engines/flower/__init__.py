"""Flower: every method, unchanged, over machines that keep their own data. `fedptr.engines.flower.setup` sets it up."""
