"""An iterator over a DataLoader whose workers change. Imports nothing: `sample_table` needs no torch."""
