"""What holds for every test."""

from hypothesis import settings

# A deadline per example measures the machine, not the code: the first example also imports scipy.
settings.register_profile("loadtune", deadline=None)
settings.load_profile("loadtune")
