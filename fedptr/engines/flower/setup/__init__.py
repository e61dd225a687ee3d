"""Setting up a federation over machines: `fedptr deploy init`, `check` and `run`, and `fedptr status`."""
