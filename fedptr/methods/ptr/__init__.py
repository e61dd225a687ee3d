"""All of FedPTR's machinery.

trajectory.py   the auxiliary dataset, and the global models its owner has seen
matching.py     how the dataset is learned from them (MTT)
dsa.py          augmentation of the auxiliary images
projection.py   one step ahead with the learned dataset
pull.py         the pull towards the projected model
combine.py      NAME+ptr: the same beside another method
"""
