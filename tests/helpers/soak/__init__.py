"""`make soak`: real processes, SIGKILL at random instants, resume, and compare with what was left alone.

Whatever is killed, however often and wherever, must end with the same weights and the same lines and files as its twin
that was left alone: runs of every method, comparisons, recipes, audits and deployed runs.
"""
