"""The settings of PyTorch's caching allocator, as the environment gives them. Needs no torch."""

import os

# PyTorch is renaming the first to the second.
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def read_alloc_conf() -> str | None:
    """The text in force. None: no settings were given."""
    return next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), None)
