"""The memory probe: the largest batch that trains, found by real training steps.

In: a bench, a recipe, and what else bounds the batch. Out: a `MemoryCeiling`. Pure over the bench: a line through the
allocated peaks of two sizes proposes, a run decides. Every size it names was run.
"""

from collections.abc import Mapping

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records import CeilingLimit, FitReport, MemoryCeiling, Recipe
from loadtune.seams import Bench

LOW, HIGH = 32, 160
"""Sizes the line goes through. Smaller ones misjudge the slope: workspaces and rounding weigh as much as the samples
(a line through 1 to 16 was 12% short for ResNet-50)."""

LEAN = 0.985
"""Of the size the line solves for: what fragmentation took at the ceilings of five models on an H200."""

STEP_BACK = 0.97
"""After a size that failed. Finer steps cost more OOMs than the samples they would find are worth."""

VISIBLE = 0.02
"""Share of the budget the upper size should fill, so that the slope stands clear of what the model itself takes."""

MAX_TRIES = 8


class _Probe:
    """The probes of one precision so far."""

    def __init__(self, bench: Bench, recipe: Recipe, num_steps: int) -> None:
        self._bench, self._recipe, self._num_steps = bench, recipe, num_steps
        self.reports: list[FitReport] = []

    def run(self, batch_size: int) -> FitReport:
        report = self._bench.try_batch(self._recipe, batch_size, self._num_steps)
        self.reports.append(report)
        return report

    @property
    def fitting(self) -> list[FitReport]:
        return sorted((r for r in self.reports if r.fits), key=lambda r: r.batch_size)

    @property
    def smallest_failed(self) -> int | None:
        return min((r.batch_size for r in self.reports if not r.fits), default=None)

    def line(self) -> tuple[float, float] | None:
        """Slope and value at 0 of allocated peak over batch size, through the two largest that fit."""
        known = [(r.batch_size, r.peak_bytes) for r in self.fitting if r.peak_bytes is not None]
        if len(known) < 2:
            return None
        (x0, y0), (x1, y1) = known[-2:]
        slope = (y1 - y0) / (x1 - x0)
        return slope, y1 - slope * x1

    def ceiling(self, limit: CeilingLimit) -> MemoryCeiling:
        line = self.line()
        return MemoryCeiling(
            precision=self._recipe.precision,
            batch_size=self.fitting[-1].batch_size,
            safe_batch_size=self.fitting[-1].batch_size,
            limit=limit,
            probes=tuple(self.reports),
            bytes_per_sample=line[0] if line else None,
            fixed_bytes=line[1] if line else None,
        )


def probe_memory(
    bench: Bench, recipe: Recipe, caps: Mapping[CeilingLimit, int], *, smallest: int = 1, num_steps: int = 3
) -> MemoryCeiling:
    """The largest batch that trains `num_steps` steps under `recipe`, and what limits it.

    `caps` are the other bounds on the batch size, each at least `smallest`, below which the model refuses to train.
    Raises NothingFitsError where not even that many fit.
    """
    limit, cap = min(caps.items(), key=lambda item: item[1])
    probe = _Probe(bench, recipe, num_steps)
    _first(probe, min(LOW, max(smallest, cap // 4)), smallest)
    _second(probe, cap)
    for _ in range(MAX_TRIES):
        size = _propose(probe, cap)
        if size is None:
            break
        probe.run(size)
    return probe.ceiling(limit if probe.fitting[-1].batch_size == cap else "memory")


def _first(probe: _Probe, size: int, smallest: int) -> None:
    """Run `size`, or a smaller one that fits."""
    report = probe.run(size)
    while not report.fits and size > smallest:
        size = max(smallest, size // 2)
        report = probe.run(size)
    if report.failure is None:
        return
    if report.failure.kind == "user_error":
        raise WorkloadError(f"A batch of {size} cannot be trained: {report.failure.message}", report.failure.log_tail)
    raise NothingFitsError(
        f"Not even a batch of {size} trains in {report.precision}: {report.failure.message} "
        "Free some memory, pick another device with --device, or take a smaller model or --image-size."
    )


def _second(probe: _Probe, cap: int) -> None:
    """Run a second size, far enough from the first for a slope, and never one that the first says cannot fit."""
    while probe.smallest_failed is None:
        base = probe.fitting[-1]
        size = min(cap, max(base.batch_size * HIGH // LOW, base.batch_size + 1))
        if base.peak_bytes and base.budget_bytes:
            size = min(size, base.batch_size * base.budget_bytes // base.peak_bytes)
        if size <= base.batch_size:
            return
        report = probe.run(size)
        if not report.fits or report.peak_bytes is None or report.budget_bytes is None:
            return
        if report.peak_bytes > VISIBLE * report.budget_bytes:
            return


def _propose(probe: _Probe, cap: int) -> int | None:
    """The next size worth running, or None when the answer stands."""
    base, wall, line = probe.fitting[-1], probe.smallest_failed, probe.line()
    if base.batch_size >= cap:
        return None
    if wall is not None:
        size = max(int(wall * STEP_BACK), base.batch_size) if line else (wall + base.batch_size) // 2
        return size if base.batch_size < size < wall and size > base.batch_size / STEP_BACK else None
    if line is None or base.budget_bytes is None or line[0] <= 0:
        return min(cap, base.batch_size * 2)
    size = min(cap, int((base.budget_bytes - line[1]) / line[0] * LEAN))
    return size if size > base.batch_size / STEP_BACK else None
