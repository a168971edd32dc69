"""What the end of a search left untried, in words."""

from loadtune.records import Dimension, TrialFailure
from loadtune.run import Run
from loadtune.search.search import Search
from loadtune.search.space import EPOCH_STEPS
from loadtune.units import counted, seconds_text

FEW = 6
"""Trials, below which a search that time ended is worth a word."""


def end_notes(run: Run, search: Search, *, ended: str, out_of_time: bool) -> list[str]:
    """What of the search's end a user should know, a line each. ``ended``: why, in words."""
    notes = [] if search.broken is None else [f"The search ended early: {search.broken}."]
    if out_of_time and (failed := hung(run)):
        notes = [
            f"The search ended early because {counted(len(failed), 'trial')} hung: {failed[-1].message.rstrip('.')}."
        ]
    elif out_of_time and len(run.trials) < FEW:
        notes = [
            f"Its share of the time budget of {seconds_text(run.config.time_budget_s)} ended the search after "
            f"{counted(len(run.trials), 'trial')}. A larger --time-budget may find a faster configuration."
        ]
    if search.too_long:
        largest = max(search.too_long, key=lambda config: config.batch_size)
        notes.append(
            f"{counted(len(search.too_long), 'configuration')} may be faster by the model, such as batch size "
            f"{largest.batch_size} with {counted(largest.loader.num_workers, 'worker')}. They were not tried, because "
            "the time left was too short to fill and empty their queues once. Raise --time-budget to try them."
        )
    tried, sizes = search.ranked(), search.space.batch_sizes
    if tried and len(sizes) > 1 and tried[0].batch_size == sizes[-1] < max(search.space.ceilings.values()):
        notes.append(
            f"Batch sizes above {sizes[-1]} were not tried: an epoch would have fewer than {EPOCH_STEPS} steps. Give "
            "one with --fix batch_size=… to try it."
        )
    return notes + [
        _tuned_note(search, name, ended, out_of_time) for name in run.config.tune if _is_void(run, search, name)
    ]


def _is_void(run: Run, search: Search, name: Dimension) -> bool:
    """Whether one value at the most was run of a dimension given to --tune."""
    configs = [trial.config for trial in run.trials]
    mattered = [config for config in configs if name == "memory_format" or config.loader.num_workers]
    values = {search.space.point(config)[name] for config in mattered} if name in search.space.axes else set()
    return len(search.space.axes.get(name, ())) > 1 and len(values) < 2


def _tuned_note(search: Search, name: Dimension, ended: str, out_of_time: bool) -> str:
    if name != "memory_format" and search.space.num_workers == (0,):
        return f"--tune {name}: this has no effect without workers, and no configuration with workers was tried."
    if out_of_time:
        return f"--tune {name}: only one value was tried, because the time ended. Raise --time-budget to try others."
    return f"--tune {name}: only one value was tried before the search ended ({ended})."


def hung(run: Run) -> list[TrialFailure]:
    """They took the time that others lack: a larger budget would go the same way."""
    return [t.failure for t in run.trials if t.failure is not None and t.failure.kind == "hang"]
