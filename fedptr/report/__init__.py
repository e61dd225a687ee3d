"""`fedptr report`: runs and comparisons as one HTML file that needs nothing else.

find.py     the run folders below some folders          group.py   which runs belong together, and what they are called
series.py   means and intervals over seeds              style.py   colours, dashes and symbols
view.py     what FedPTR did inside                      splits.py  samples by client and class
audits.py   privacy audits                              reproduced.py  a recipe's table
tables.py   tables and the list of runs, as HTML        write.py   the page itself, with theme.js, charts.js and page.js
"""
