"""The server's side of a deployed run: who takes part, the rounds, the checks of what arrives."""
