"""`fedptr report`: runs and comparisons as one HTML file that needs nothing else.

find_runs.py         the runs below some folders       group_runs.py      which runs belong together, and their labels
means_over_seeds.py  means and intervals over seeds    series_styles.py   colours, dashes and symbols
fedptr_data.py       what FedPTR did inside            split_data.py      samples by client and class
audit_section.py     privacy audits                    recipe_section.py  a recipe's table
client_data.py       scores by client                  client_section.py  who is left behind, as tables
html_tables.py       tables and the list of runs       page.py            the page, with the scripts in assets/
"""
