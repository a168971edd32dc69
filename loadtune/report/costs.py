"""Start-up cost of an epoch and time of a checkpoint, in words. Nothing where they were not measured."""

import statistics

from loadtune.records import EpochCost, SavingCost, TuningResult
from loadtune.units import bytes_text, counted, percent_text, seconds_text


def cost_lines(result: TuningResult) -> tuple[str, ...]:
    """Costs that the throughput does not contain."""
    lines: list[str] = []
    if result.epoch_cost is not None:
        lines.append(_epoch_line(result.epoch_cost, _epoch_s(result), _fresh_start_s(result)))
    if result.saving_cost is not None:
        lines.append(_saving_line(result.saving_cost))
    return tuple(lines)


def _epoch_s(result: TuningResult) -> float | None:
    """Seconds of an epoch with the winner, the start of its workers included."""
    if result.best is None:
        return None
    return next((f.epoch_s for f in result.finalists if f.config == result.best.config), None)


def _fresh_start_s(result: TuningResult) -> float | None:
    """Median seconds from the start of new workers to their first batch, in the winner's runs of the confirmation."""
    runs = (f.runs for f in result.finalists if result.best is not None and f.config == result.best.config)
    return next((statistics.median(measured.first_batch_s for measured in own) for own in runs if own), None)


def _epoch_line(cost: EpochCost, epoch_s: float | None, fresh_start_s: float | None) -> str:
    kept, anew = cost.boundary_kept_s, cost.boundary_anew_s
    at_least = ""
    if anew is None and fresh_start_s is not None:  # there was no time to end workers as well
        anew, at_least = fresh_start_s, "at least "
    between = f"{seconds_text(kept)} with persistent_workers, {at_least}{seconds_text(anew)} without"
    if epoch_s:
        shares = f"{percent_text(kept / epoch_s, 1)} and {percent_text(None if anew is None else anew / epoch_s, 1)}"
        between += f": {shares} of an epoch of {seconds_text(epoch_s)}"
    return f"Between two epochs no batch is ready for {between}."


def _saving_line(cost: SavingCost) -> str:
    workers = f"{counted(cost.num_workers, 'worker')} {'runs' if cost.num_workers == 1 else 'run'}"
    return (
        f"Saving a checkpoint of {bytes_text(cost.checkpoint_bytes)} takes "
        f"{seconds_text(cost.median_beside_workers_s)} while {workers}, {seconds_text(cost.median_alone_s)} without "
        "workers."
    )
