"""A run: what it has found (`state`), its time (`budget`), what is said and kept (`journal`), and how it times
(`measure`). `measure.Run` is all of it, for the stages; a rule is given the values that it judges.
"""
