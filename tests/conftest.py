"""What holds for every test."""

import os

from hypothesis import settings

# A deadline per example measures the machine, not the code: the first example also imports scipy.
settings.register_profile("loadtune", deadline=None)
settings.load_profile("loadtune")

# Beside other tests on the same cores OpenMP's threads wait for one another at barriers, 50 ms a layer at times.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
