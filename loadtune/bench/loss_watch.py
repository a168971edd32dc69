"""Whether training gives finite losses. One addition on the device for each step, and no synchronisation of its own."""

import math

import torch


class LossWatch:
    """Sums the losses: a sum in float64 is NaN or infinite from the first loss on that is."""

    def __init__(self) -> None:
        self._sums: dict[torch.device, torch.Tensor] = {}
        self._of_numbers: float | None = None

    def add(self, loss: torch.Tensor | float) -> None:
        """Take a loss of one step: a number, or a tensor that holds one. Does not wait for the device."""
        if not isinstance(loss, torch.Tensor):
            self._of_numbers = (self._of_numbers or 0.0) + loss
            return
        loss = loss.detach().reshape(())
        if loss.device in self._sums:
            self._sums[loss.device].add_(loss)
        else:
            self._sums[loss.device] = loss.to(torch.float64, copy=True)

    def is_finite(self) -> bool | None:
        """Whether all losses so far were finite. Waits for the device. None: there was none."""
        sums = [total.item() for total in self._sums.values()]
        sums += [] if self._of_numbers is None else [self._of_numbers]
        return all(map(math.isfinite, sums)) if sums else None
