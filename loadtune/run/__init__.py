"""A run: what it has found, says and keeps (`state`), its time (`budget`), and how it times (`measure`). `measure.Run`
is all of it, for the stages; a rule is given the values that it judges.
"""
