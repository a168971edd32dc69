"""A DataLoader whose settings change while a loop iterates it: `switching.SwitchingLoader`.

This file imports nothing, so that the controller can read `sample_table` without importing torch.
"""
