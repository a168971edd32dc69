"""A process that asks loadtune for one cell's ceiling, as the tuner's controller does. Needs no torch itself.

In: an order naming the cell and the device. Out: the ceiling as plain figures, and the bench's process ids as they
come, so that the one who ordered can kill it, or see that it has gone.
"""

import os
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from memory_grid import Cell, cell_named
from memory_orders import ERROR, FITS, Order, Say, await_order, first_line, private_stdout

from loadtune.bench import BenchClient
from loadtune.probe.memory import MemoryProbe
from loadtune.records.config import Recipe, WorkloadSpec
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.memory import CeilingLimit, FitReport, MemoryCeiling

_WATCH_S = 0.02


def probe_cell(bench: BenchClient, cell: Cell, facts: WorkloadFacts) -> MemoryCeiling:
    """The call that is measured."""
    recipe = Recipe(precision=cell.precision, memory_format=cell.memory_format, fused_optimizer=True)
    caps: dict[CeilingLimit, int] = {"dataset": facts.dataset_length}
    if cell.cap is not None:
        caps["cap"] = cell.cap
    return MemoryProbe(bench, recipe, caps, smallest=facts.min_batch_size).verify()


def measure(order: Order, say: Say) -> dict[str, object]:
    """Bench up, workload described, then the probe by the clock."""
    cell = cell_named(order["cell"])
    device = Device(kind=order["kind"], uuid=order["uuid"], name=order["name"])
    spec = WorkloadSpec(
        dataset=f"memory_cells:{cell.dataset}",
        model=f"memory_cells:{cell.model}",
        num_classes=cell.num_classes,
        optimizer=cell.optimizer,
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(order.get("log") or folder) / f"bench-{cell.name}-{os.getpid()}.log"
        with BenchClient(spec, device, log_path=log) as bench:
            _tell_pids(bench, say)
            started = time.monotonic()
            facts = bench.describe()
            say(event="probing")
            ready = time.monotonic()
            ceiling = probe_cell(bench, cell, facts)
            return _claim(ceiling, ready - started, time.monotonic() - ready)


def _tell_pids(bench: BenchClient, say: Say) -> None:
    def watch() -> None:
        told: int | None = None
        while True:
            pid = bench.pid
            if pid is not None and pid != told:
                say(event="bench", pid=pid)
                told = pid
            time.sleep(_WATCH_S)

    threading.Thread(target=watch, daemon=True).start()


def _claim(ceiling: MemoryCeiling, bench_s: float, probe_s: float) -> dict[str, object]:
    return {
        "hard": ceiling.batch_size,
        "safe": ceiling.safe_batch_size,
        "limit": ceiling.limit,
        "probes": [_probe(report) for report in ceiling.probes],
        "num_probes": ceiling.num_probes,
        "num_ooms": ceiling.num_ooms,
        "counted_s": ceiling.seconds,
        "bench_s": bench_s,
        "probe_s": probe_s,
        "bytes_per_sample": ceiling.bytes_per_sample,
        "fixed_bytes": ceiling.fixed_bytes,
        "line_error_fraction": ceiling.line_error_fraction,
    }


def _probe(report: FitReport) -> dict[str, object]:
    return {
        "batch_size": report.batch_size,
        "failure": None if report.failure is None else f"{report.failure.kind}: {report.failure.message}",
        "seconds": report.seconds,
        "num_retries": report.num_alloc_retries,
        "num_steady_retries": report.num_steady_retries,
        "peak_bytes": report.peak_bytes,
        "evaluation_peak_bytes": report.evaluation_peak_bytes,
        "reserved_peak_bytes": report.reserved_peak_bytes,
        "outside_bytes": report.outside_bytes,
        "budget_bytes": report.budget_bytes,
    }


def main() -> None:
    say = private_stdout()
    order = await_order()
    started = time.monotonic()
    try:
        say(answer=measure(order, say), seconds=time.monotonic() - started)
    except Exception as error:
        traceback.print_exc()
        say(error=first_line(error), seconds=time.monotonic() - started)
        sys.exit(ERROR)
    sys.exit(FITS)


if __name__ == "__main__":
    main()
