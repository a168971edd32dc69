"""A run: what it has found, says and keeps, and its time (`state`); how it times (`measure`)."""
