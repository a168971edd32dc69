"""What the end of a search left untried, in sentences for whoever reads the result."""

from collections.abc import Iterator

from loadtune.findings import Findings
from loadtune.records import Dimension, TrialFailure
from loadtune.study.loop import StudyLoop
from loadtune.study.space import EPOCH_STEPS, SearchSpace
from loadtune.units import counted, seconds_text

FEW = 6
"""Trials, below which a search that time ended is worth a word."""


def end_notes(loop: StudyLoop, found: Findings, searched: SearchSpace) -> list[str]:
    """What of the search's end a user should know, a line each."""
    first = [] if loop.search.broken is None else [f"The search ended early: {loop.search.broken}."]
    if loop.out_of_time and (hung := hung_trials(found)):
        first = [f"The search ended early because {counted(len(hung), 'trial')} hung: {hung[-1].message.rstrip('.')}."]
    elif loop.out_of_time and len(found.trials) < FEW:
        first = [
            f"The time budget of {seconds_text(found.config.time_budget_s)} ended the search after "
            f"{counted(len(found.trials), 'trial')}. A larger --time-budget may find a faster configuration."
        ]
    if loop.search.too_long:
        largest = max(loop.search.too_long, key=lambda config: config.batch_size)
        first.append(
            f"{counted(len(loop.search.too_long), 'configuration')} may be faster by the model, such as batch size "
            f"{largest.batch_size} with {counted(largest.loader.num_workers, 'worker')}. They were not tried, because "
            "the time left was too short to fill and empty their queues once. Raise --time-budget to try them."
        )
    tried, top = loop.search.ranked(), searched.batch_sizes[-1]
    if tried and len(searched.batch_sizes) > 1 and tried[0].config.batch_size == top < max(searched.ceilings.values()):
        first.append(
            f"Batch sizes above {top} were not tried: an epoch would have fewer than {EPOCH_STEPS} steps. Give one "
            "with --fix batch_size=… to try it."
        )
    return [*first, *(_tuned_note(loop, searched, name) for name in _void(found, searched))]


def hung_trials(found: Findings) -> list[TrialFailure]:
    """They took the time that others lack: a larger budget would go the same way."""
    return [t.failure for t in found.trials if t.failure is not None and t.failure.kind == "hang"]


def _void(found: Findings, searched: SearchSpace) -> Iterator[Dimension]:
    """Dimensions given to --tune of which one value was run at most, or none."""
    axes, run = searched.axes, [trial.config for trial in found.trials]
    for name in found.config.tune:
        mattered = [config for config in run if name == "memory_format" or config.loader.num_workers]
        if len(axes.get(name, ())) > 1 and len({searched.point(config)[name] for config in mattered}) < 2:
            yield name


def _tuned_note(loop: StudyLoop, searched: SearchSpace, name: Dimension) -> str:
    if name != "memory_format" and searched.num_workers == (0,):
        return f"--tune {name}: this has no effect without workers, and no configuration with workers was tried."
    if loop.out_of_time:
        return f"--tune {name}: only one value was tried, because the time ended. Raise --time-budget to try others."
    return f"--tune {name}: only one value was tried before the search ended ({loop.ended})."
