"""The report page: every figure as plain data, then one HTML file that opens offline. Judges nothing."""
