"""Ways to run a round's clients other than the in-process loop. Each is an extra, imported only when used."""
