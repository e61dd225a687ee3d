"""All of FedPTR's machinery.

trajectory.py   the auxiliary dataset, and the global models its owner has seen
auxiliary.py    the dataset while it is learned
matching.py     the outer steps that learn it from them
objective.py    what an outer step lowers, in one of two ways:
by_trajectory.py   a student on the dataset arrives where the global model did (MTT)
by_gradient.py     the dataset's gradient points where the global model went
dsa.py          augmentation of the auxiliary images
projection.py   one step ahead with the learned dataset
pull.py         the pull towards the projected model
combine.py      NAME+ptr: the same beside another method
"""
