"""`fedptr audit`: what a trained model, and FedPTR's auxiliary data, give away about who was trained on.

target.py     a finished run, and its model's outputs        examples.py   who is audited, and whose data it is
scores.py     the loss, and LiRA's φ                         loss.py       the loss attack, with Yeom's threshold
lira.py       the likelihood-ratio attack                    shadows.py    the models it needs, as resumable runs
roc.py        ROC curves from scores                         metrics.py    AUC, accuracies, TPR at FPR, with intervals
neighbours.py distances to auxiliary images                  auxiliary.py  the audit of the auxiliary sets
pairs.py      pictures of the closest pairs                  result.py     audit.json
table.py, figure.py  the terminal's table, the ROC plot      command.py    the command
"""
