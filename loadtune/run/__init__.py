"""A run: what it has found, says and keeps (`state`), its time (`budget`), and how it times (`measure`)."""
