"""torch.compile for the training: one compiled module that lives across requests, and an account of what compiling
took.

Each batch size is compiled for itself (``dynamic=False``), as a script gets that trains at one size. Compiling is seen
through PyTorch's own callbacks wherever it happens, the lazily compiled backward pass in autograd's thread included.
"""

import time

import torch
from torch import nn

from loadtune.training.protocol import COMPILING, Line

# Graphs of one function that PyTorch keeps: batch sizes × precisions × layouts × blocks of the model, which all may
# share it. Past its own limit of 8 it goes on without compiling and says so in a log; past this one it raises.
_MOST_GRAPHS = 10_000


class Compiler:
    """Compiles `module` when it is first called, and anew where a batch size, a precision or a layout is new."""

    def __init__(self, module: nn.Module, line: Line) -> None:
        import torch._dynamo as dynamo  # two seconds, which only who compiles has to wait

        dynamo.config.recompile_limit = dynamo.config.accumulated_recompile_limit = _MOST_GRAPHS
        dynamo.config.fail_on_recompile_limit_hit = True
        dynamo.config.suppress_errors = False  # else what does not compile is run as it is written, in silence
        dynamo.callback.on_compile_start(lambda *_: self._begin())
        dynamo.callback.on_compile_end(lambda *_: self._end())
        self._line, self._phase = line, ""
        self._begun: float | None = None
        self.seconds = 0.0
        """Spent compiling so far."""
        self.num_compiled = 0
        """Times that something was compiled so far: forward and backward passes count apart."""
        self.module: nn.Module = torch.compile(module, dynamic=False)  # type: ignore[assignment]

    @property
    def num_graphs(self) -> int:
        """Graphs that were found in the model. 0: all of it is run as it is written."""
        from torch._dynamo.utils import counters

        return counters["stats"]["unique_graphs"]

    def _begin(self) -> None:
        self._begun, self._phase = time.monotonic(), self._line.phase
        self._line.enter(COMPILING)

    def _end(self) -> None:
        if self._begun is not None:
            self.seconds += time.monotonic() - self._begun
            self.num_compiled += 1
            self._begun = None
            self._line.enter(self._phase)
