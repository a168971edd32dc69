"""loadtune: finds the batch size, workers, pinning and precision that train the most samples a second here."""

__version__ = "0.1.0"
