"""`fedptr audit`: what a trained model, and FedPTR's auxiliary data, give away about who was trained on.

run_audit.py   an audit from start to end             options.py          what it is asked to do
target.py      a finished run, and its model          examples.py         which examples are audited, and whose they are
scores.py      the loss, and LiRA's φ                 loss_attack.py      the loss attack, with Yeom's threshold
lira.py        the likelihood-ratio attack            shadows.py          the models it needs, as resumable runs
roc.py         ROC curves from scores                 metrics.py          AUC, accuracies, TPR at FPR, with intervals
neighbours.py  distances to auxiliary images          auxiliary_audit.py  the audit of the auxiliary sets
audit_json.py  writes and reads audit.json            check_audit.py      checks what is read
audit_table.py the tables in the terminal             roc_figure.py, closest_pairs.py  the pictures
"""
