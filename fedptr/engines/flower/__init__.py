"""Flower: every method, unchanged, over machines that keep their own data. `fedptr.deploy` sets it up."""
