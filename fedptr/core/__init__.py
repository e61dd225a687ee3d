"""The engine and its parts: tasks, local training, rounds, clients' states, keyed randomness. It knows no method."""
