"""Ray: the clients of a round train in worker processes, on this machine or on a cluster."""
