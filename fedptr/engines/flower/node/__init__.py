"""A node's side of a deployed run: its data, its state, and its answers to the server."""
