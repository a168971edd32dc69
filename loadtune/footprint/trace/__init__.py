"""Memory by source line: `trace_memory` around a block, `run_traced` for a script.

Comes in: code that runs in this thread. Goes out: a `MemoryTrace`, as a record, a table or JSON. ``tracing`` follows
the frames, ``tensors`` the storages; ``visits`` keeps what they and the allocator's counters say.
"""

from loadtune.footprint.trace.tracing import Tracing, run_traced, trace_memory
from loadtune.footprint.trace.view import trace_json, trace_text

__all__ = ["Tracing", "run_traced", "trace_json", "trace_memory", "trace_text"]
