"""Tuning the workers of DataLoaders inside a running training: `loadtune exec`, `loadtune.DataLoader`.

`hook` puts an iterator of ours (`iterator`) in the place of torch's. A `tuner` for each loader takes the times of its
steps and what `readings` reads, lets `loadtune.decide` decide, and switches. `account` keeps what was found, for
people, loggers and the next run. `loadtune/cli/exec.py` runs a script with the hook in it. This file imports nothing:
the hook is in place before torch is.
"""
