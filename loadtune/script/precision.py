"""The precision that the user's loop trains in and the layout of its weights, set from outside of it. Its state belongs
to the loop's thread.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch import distributed
from torch.optim import Optimizer, optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from loadtune.records.config import MemoryFormat, Recipe
from loadtune.workload.build import AUTOCAST_DTYPES

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
"""Operations in which nearly all of the time goes, and which autocast casts."""
_WHOLE = 0.9
"""Share of a forward pass, by the elements of its products, that a switch of the loop's holds at the least. Attention
in float32 holds up to two thirds."""
_OF_TORCH = ("torch/amp/", "torch/cuda/amp/", "torch/cpu/amp/", "/contextlib.py")
"""Parts of the names of files that enter an autocast for somebody else."""


class Precisions:
    """Autocast around the loop's forward pass, and what the loop itself does about precision."""

    def __init__(self, device_type: str) -> None:
        self.own: str | None = None
        """Of the loop's own autocast that trains: ``bf16``. None: it has none."""
        self.num_steps = 0
        self.gpu: int | None = None
        """Number of the one whose parameters are stepped. None: there is none."""
        self._device_type, self._asked = device_type, "own"
        self._laid_out: MemoryFormat = "contiguous"
        self._optimizers = WeakSet[Optimizer]()
        self._probe: _Products | None = None
        self._off = dict[int, str]()
        """Places of the autocasts that were entered and are disabled, outermost first, by their ids."""
        self._on = set[int]()
        """Ids of those that are enabled."""
        self.switches = set[str]()
        """``FILE:LINE`` of the disabled ones around the whole forward pass, as ``autocast(enabled=args.amp)`` is.
        Others protect a part of the model."""
        self._is_captured = False
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        torch.autograd.backward = self._backward(torch.autograd.backward)
        autocast: Any = torch.amp.autocast_mode.autocast
        autocast.__enter__, autocast.__exit__ = self._entering(autocast.__enter__), self._leaving(autocast.__exit__)
        torch.cuda.graph.__enter__ = self._capturing(torch.cuda.graph.__enter__)  # type: ignore[method-assign]

    def may_lay_out(self) -> bool:
        """Whether weights of convolutions can be laid out in another way: neither a process group nor compiled or
        captured code counts on their layout. Known after the first step."""
        compiled, is_fixed = sys.modules.get("torch._dynamo.utils"), self._is_captured
        is_fixed |= distributed.is_available() and distributed.is_initialized()
        if is_fixed or (compiled is not None and compiled.counters["frames"]["total"]):
            return False
        weights = [weight for _, weight in self._weights()]
        return bool(weights) and all(each.layout is torch.strided and each.is_contiguous() for each in weights)

    def begin(self, recipe: Recipe, *, is_probed: bool = False) -> None:
        """As the loop gets a batch. ``is_probed``: what products compute in is noted up to `end`."""
        self._asked = recipe.precision
        if self._laid_out != recipe.memory_format:
            self._lay_out(recipe.memory_format)
        self._enter()
        if is_probed:
            self._probe = _Products(self._off)
            self._probe.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> Counter[str]:
        """As the loop asks for the next batch: elements of all products since, by their type. Empty: nobody looked."""
        self._leave()
        probe, self._probe = self._probe, None
        if probe is None:
            return Counter()
        probe.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        by_file = Counter[str]()
        for place, num in probe.off.items():
            by_file[place.rpartition(":")[0]] += num
        self.switches |= {e for e in probe.off if by_file[e.rpartition(":")[0]] > _WHOLE * probe.num_forward}
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

    def _weights(self) -> Iterator[tuple[Optimizer, torch.nn.Parameter]]:
        """Of convolutions over images. cuDNN lays out the batch as they are, once, before the first of them."""
        for owner in self._optimizers:
            yield from ((owner, each) for group in owner.param_groups for each in group["params"] if each.dim() == 4)

    def _lay_out(self, memory_format: MemoryFormat) -> None:
        self._laid_out = memory_format
        layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        for owner, weight in self._weights():
            state = [each for each in owner.state.get(weight, {}).values() if isinstance(each, torch.Tensor)]
            for each in (weight, weight.grad, *state):
                if each is not None and each.dim() == 4:
                    each.data = each.data.to(memory_format=layout)

    def _before_step(self, stepped: Any, given: Any, named: Any) -> None:
        self._optimizers.add(stepped)
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
            if own.device != self._device_type or not torch.is_grad_enabled():
                return before(own)
            if own._enabled:
                self.own = names.get(own.fast_dtype, self.own)
                self._on.add(id(own))
            elif self._on:  # within one of the loop's: it protects a part
                return before(own)
            else:
                self._off[id(own)] = place = _place(sys._getframe(1))
                if place not in self.switches:
                    return before(own)
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

    def _leaving(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def leave(own: Any, *raised: Any) -> Any:
            self._off.pop(id(own), None)
            self._on.discard(id(own))
            return before(own, *raised)

        return leave

    def _capturing(self, before: Callable[[Any], None]) -> Callable[[Any], None]:
        def capture(graph: Any) -> None:
            self._is_captured = True
            before(graph)

        return capture


def _place(frame: FrameType) -> str:
    """``FILE:LINE`` of the code that wants an autocast."""
    while frame.f_back is not None and any(part in frame.f_code.co_filename for part in _OF_TORCH):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what products return, its elements by their type; of a forward pass, those in disabled autocasts, too."""

    def __init__(self, off: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self.num_forward, self.off = Counter[str](), 0, Counter[str]()
        self._off = off

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _PRODUCTS and isinstance(made, torch.Tensor):
            self.seen[str(made.dtype).removeprefix("torch.")] += made.numel()
            if torch.is_grad_enabled():
                self.num_forward += made.numel()
                self.off.update(dict.fromkeys([*self._off.values()][:1], made.numel()))
        return made
