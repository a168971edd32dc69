"""Whether training gives finite losses. One addition on the device for each step, and no synchronisation of its own."""

import math

import torch


class LossWatch:
    """Sums the losses: a sum in float64 is NaN or infinite from the first loss on that is."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None

    def add(self, loss: torch.Tensor) -> None:
        """Take the loss of one step; does not wait for the device."""
        loss = loss.detach()
        if self._sum is None:
            self._sum = loss.to(torch.float64, copy=True)
        else:
            self._sum.add_(loss)

    def is_finite(self) -> bool | None:
        """Whether all losses so far were finite. Waits for the device. None: there was none."""
        return None if self._sum is None else math.isfinite(self._sum.item())
