"""An iterator over a DataLoader whose workers change while a loop goes on: `switching.SwitchingIterator`.

This file imports nothing, so that the controller can read `sample_table` without importing torch.
"""
