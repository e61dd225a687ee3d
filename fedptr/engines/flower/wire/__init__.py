"""What travels between server and nodes, and how; both sides build on it."""
