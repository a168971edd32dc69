"""The start of an epoch, in words. Nothing where it was not measured."""

import statistics

from loadtune.records import Finalist, TuningResult
from loadtune.records.chosen import finalist_of
from loadtune.units import percent_text, seconds_text


def cost_lines(result: TuningResult) -> tuple[str, ...]:
    """Costs that the throughput does not contain."""
    lines: list[str] = []
    best = None if result.best is None else finalist_of(result, result.best.config)
    if best is not None and best.epoch_s is not None and best.config.loader.num_workers:
        lines.append(_epoch_line(best, best.epoch_s))
    return tuple(lines)


def _epoch_line(best: Finalist, epoch_s: float) -> str:
    """Medians over the runs of the confirmation."""
    kept, anew = (statistics.median(getattr(run, name) for run in best.runs) for name in ("refill_s", "first_batch_s"))
    return (
        f"Where an epoch begins, training waits {seconds_text(kept)} for a batch with persistent_workers, "
        f"{seconds_text(anew)} without: {percent_text(kept / epoch_s, 1)} and {percent_text(anew / epoch_s, 1)} of an "
        f"epoch of {seconds_text(epoch_s)}."
    )
