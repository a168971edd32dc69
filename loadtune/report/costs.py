"""Start of an epoch and time of a checkpoint, in words. Nothing where they were not measured."""

import statistics

from loadtune.records import Finalist, SavingCost, TuningResult
from loadtune.records.chosen import finalist_of
from loadtune.units import bytes_text, counted, percent_text, seconds_text


def cost_lines(result: TuningResult) -> tuple[str, ...]:
    """Costs that the throughput does not contain."""
    lines: list[str] = []
    best = None if result.best is None else finalist_of(result, result.best.config)
    if best is not None and best.epoch_s is not None and best.config.loader.num_workers:
        lines.append(_epoch_line(best, best.epoch_s))
    if result.saving_cost is not None:
        lines.append(_saving_line(result.saving_cost))
    return tuple(lines)


def _epoch_line(best: Finalist, epoch_s: float) -> str:
    """Medians over the runs of the confirmation."""
    kept, anew = (statistics.median(getattr(run, name) for run in best.runs) for name in ("refill_s", "first_batch_s"))
    return (
        f"Where an epoch begins, training waits {seconds_text(kept)} for a batch with persistent_workers, "
        f"{seconds_text(anew)} without: {percent_text(kept / epoch_s, 1)} and {percent_text(anew / epoch_s, 1)} of an "
        f"epoch of {seconds_text(epoch_s)}."
    )


def _saving_line(cost: SavingCost) -> str:
    workers = f"{counted(cost.num_workers, 'worker')} {'runs' if cost.num_workers == 1 else 'run'}"
    return (
        f"Saving a checkpoint of {bytes_text(cost.checkpoint_bytes)} takes "
        f"{seconds_text(cost.median_beside_workers_s)} while {workers}, {seconds_text(cost.median_alone_s)} without "
        "workers."
    )
