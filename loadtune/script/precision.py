"""The precision that the user's loop trains in, set from outside of it. Its state belongs to the loop's thread."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from loadtune.workload.tasks import AUTOCAST_DTYPES

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
"""Operations in which nearly all of the time goes, and which autocast casts."""


class Precisions:
    """Autocast around the loop's forward pass, and what the loop itself does about precision."""

    def __init__(self, device_type: str) -> None:
        self.own: str | None = None
        """Of the loop's own autocast that trains: ``bf16``. None: it has none."""
        self.num_steps = 0
        self.gpu: int | None = None
        """Number of the one whose parameters are stepped. None: there is none."""
        self._device_type, self._asked = device_type, "own"
        self._probe: _Products | None = None
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        torch.autograd.backward = self._backward(torch.autograd.backward)
        autocast: Any = torch.amp.autocast_mode.autocast
        autocast.__enter__ = self._entering(autocast.__enter__)

    def begin(self, precision: str, *, is_probed: bool = False) -> None:
        """As the loop gets a batch. ``is_probed``: what products compute in is noted up to `end`."""
        self._asked = precision
        self._enter()
        if is_probed:
            self._probe = _Products()
            self._probe.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> Counter[str]:
        """As the loop asks for the next batch: elements of all products since, by their type. Empty: nobody looked."""
        self._leave()
        probe, self._probe = self._probe, None
        if probe is None:
            return Counter()
        probe.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return probe.seen

    def pause(self) -> None:
        """As the loop gets a batch that it does not train on."""
        if not torch.is_grad_enabled():
            self._leave()

    def _enter(self) -> None:
        if self._asked != "own":
            dtype = AUTOCAST_DTYPES[self._asked]  # type: ignore[index]
            if dtype is not None:
                torch.set_autocast_dtype(self._device_type, dtype)
            torch.set_autocast_enabled(self._device_type, dtype is not None)

    def _leave(self) -> None:
        """Weights that were cast are forgotten: an optimizer changes them."""
        if self._asked != "own":
            torch.set_autocast_enabled(self._device_type, False)
            torch.clear_autocast_cache()

    def _before_step(self, stepped: Any, given: Any, named: Any) -> None:
        if self.num_steps == 0:
            devices = (each.device for group in stepped.param_groups for each in group["params"])
            self.gpu = next((device.index for device in devices if device.type == "cuda"), None)
        if len(given) < 2 and not named.get("closure"):  # the forward pass may run in the step, as a closure
            self._leave()

    def _after_step(self, *_: Any) -> None:
        self.num_steps += 1
        self._enter()  # for loops that step several times a batch

    def _backward(self, before: Callable[..., None]) -> Callable[..., None]:
        def backward(*given: Any, **named: Any) -> None:
            if self._asked != "own":
                torch.set_autocast_enabled(self._device_type, False)
            try:
                before(*given, **named)
            finally:
                self._enter()

        return backward

    def _entering(self, before: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The loop's own autocast takes what is asked for."""
        names = {dtype: name for name, dtype in AUTOCAST_DTYPES.items() if dtype is not None}

        def enter(own: Any) -> Any:
            if own.device != self._device_type or not own._enabled or not torch.is_grad_enabled():
                return before(own)
            self.own = names.get(own.fast_dtype, self.own)
            if self._asked == "own":
                return before(own)
            as_written = own.fast_dtype, own._enabled
            dtype = AUTOCAST_DTYPES[self._asked]  # type: ignore[index]
            own.fast_dtype, own._enabled = dtype or own.fast_dtype, dtype is not None
            try:
                return before(own)
            finally:
                own.fast_dtype, own._enabled = as_written

        return enter


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what products return, its elements by their type."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _PRODUCTS and isinstance(made, torch.Tensor):
            self.seen[str(made.dtype).removeprefix("torch.")] += made.numel()
        return made
