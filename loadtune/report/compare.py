"""Two results of one workload side by side: what differs, and the ratio of their rates. Pure.

In: two `TuningResult`s. Out: a `Comparison`. It refuses what cannot be compared, says what makes a comparison doubtful,
and claims no difference that the runs of both sides do not show.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from loadtune.errors import ResultError
from loadtune.records.answer import compute_rate, finalist_of, was_confirmed_whole
from loadtune.records.config import Objective, TrialConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.interval import Interval, around, spread_between, students_t
from loadtune.records.measurement import Measurement
from loadtune.records.result import TuningResult, Winner
from loadtune.records.telemetry import Telemetry
from loadtune.report.tables import confirmed_row

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact or a figure, before and after. The name ends in its unit where it has one."""

    name: str
    before: Value
    """None: not known, or not there."""
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two results: when it was made, and the winner that is compared."""

    created: str
    hostname: str
    device: str
    winner: Winner | None
    """None: there is no confirmed winner."""
    figures: dict[str, str]
    """Of the winner, as the page's table shows them. Empty: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two results of one workload, side by side."""

    workload: str
    before: Side
    after: Side
    ratio: Interval | None
    """Of the winners' throughput, or samples per joule where both runs looked for those. None: one side has none."""
    changes: tuple[Change, ...]
    """Machine, versions, workload: only what is not the same."""
    figures: tuple[Change, ...]
    """What else was measured and moved, where both winners are one configuration: where a loss comes from."""
    notes: tuple[str, ...] = ()
    """What to beware of: whole sentences."""


_OF_NOW = ("num_listed_cores", "ram_total_bytes", "ram_available_bytes", "shm_free_bytes", "gpus")
"""Of `HostFacts`: what limits in force replace, or what changes while a machine stays as it is."""

_BESIDE_THE_STEP = ("data_root", "seed", "batch_dim", "objects")
"""Of a `WorkloadSpec`: what does not make another training step of it."""

_OF_A_RUNS_LENGTH = ("seconds", "gpu_energy_j")
"""Of a `Telemetry`: more where a run took longer, whatever the machine did."""

_VISIBLE = 0.03
"""A figure that moved by less says nothing: fresh loaders of one configuration differ by twice that."""


def compare(before: TuningResult, after: TuningResult, *, keep_batch_size: bool = False) -> Comparison:
    """What changed. ``keep_batch_size`` compares the winners at the users' batch sizes.

    Raises ResultError where the two trained different things.
    """
    _refuse_other_steps(before, after)
    results = (before, after)
    winners = [result.best_at_your_batch if keep_batch_size else result.best for result in results]
    configs = [winner.config for winner in winners if winner is not None]
    objectives = {result.config.objective for result in results}
    objective = before.config.objective if len(objectives) == 1 else "samples-per-s"
    old, new = (_mean(result, winner, objective) for result, winner in zip(results, winners, strict=True))
    return Comparison(
        workload=before.config.workload.title,
        before=_side(before, winners[0]),
        after=_side(after, winners[1]),
        ratio=ratio_of(old, new) if old and new else None,
        changes=(
            *_changes(_machine(before.host, before.device), _machine(after.host, after.device)),
            *_changes(_facts_around(before), _facts_around(after)),
        ),
        figures=_figures_of_one(before, after, configs[0]) if len(configs) == 2 and configs[0] == configs[1] else (),
        notes=tuple(_notes(before, after, winners)),
    )


def _figures_of_one(before: TuningResult, after: TuningResult, config: TrialConfig) -> tuple[Change, ...]:
    """Of a configuration that both measured."""
    rates = [compute_rate(result.compute_points, config) for result in (before, after)]
    alone = [None if rate is None else rate.samples_per_s for rate in rates]
    found = [finalist_of(result, config) for result in (before, after)]
    moved = figure_changes(*(finalist.runs if finalist else () for finalist in found))
    compute = Change(name="compute_only_samples_per_s", before=alone[0], after=alone[1])
    return (compute, *moved) if None not in alone else moved


def figure_changes(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[Change, ...]:
    """Means over runs of what the machine did meanwhile, as far as both sides know it and it moved.

    Runs are not of one length, so amounts that pile up over one are compared by what they come to in relation to it.
    """
    return tuple(change for change in _beside(_figures(before), _figures(after)) if _has_moved(change))


@dataclass(frozen=True, slots=True)
class Mean:
    """Of repeated runs of one configuration."""

    value: float
    variance: float | None
    """Of the mean, as a share of its square, from the spread between runs. None: nothing on that side ran twice."""
    degrees_of_freedom: int = 1

    @property
    def half_width_fraction(self) -> float | None:
        return None if self.variance is None else students_t(self.degrees_of_freedom) * math.sqrt(self.variance)

    @property
    def interval(self) -> Interval:
        return around(self.value, self.half_width_fraction)


def mean_of(
    runs: Sequence[Measurement],
    among: Sequence[Sequence[Measurement]] = (),
    objective: Objective = "samples-per-s",
) -> Mean:
    """Mean rate, or samples per joule. The spread is pooled over the configurations ``among`` which it is one."""

    def figures(runs: Sequence[Measurement]) -> list[float]:
        return [run.samples_per_s if objective == "samples-per-s" else run.score(objective) for run in runs]

    values, spread = figures(runs), spread_between([figures(each) for each in among or [runs]])
    if spread is None:
        return Mean(statistics.fmean(values), None)
    return Mean(statistics.fmean(values), spread.relative_sd**2 / len(runs), spread.degrees_of_freedom)


def ratio_of(before: Mean, after: Mean) -> Interval:
    """After over before; without an interval where a side has no spread.

    Unlike in one confirmation the two sides were not measured in turn, so neither knows the other's spread: Welch's
    interval, with his and Satterthwaite's degrees of freedom (Biometrika 34, 1947), on the log, because noise is a
    share of the mean. It knows nothing of what a machine does from one day to the next.
    """
    ratio = after.value / before.value
    if before.variance is None or after.variance is None:
        return Interval(value=ratio)
    variance = before.variance + after.variance
    doubt = before.variance**2 / before.degrees_of_freedom + after.variance**2 / after.degrees_of_freedom
    # No doubt is left by identical runs, as only a fake makes them.
    width = students_t(max(1, int(variance**2 / doubt))) * math.sqrt(variance) if doubt else 0.0
    return Interval(value=ratio, low=ratio * math.exp(-width), high=ratio * math.exp(width))


def _refuse_other_steps(before: TuningResult, after: TuningResult) -> None:
    found = _changes(_step(before), _step(after))
    if before.facts and after.facts and not found:
        found = _changes(_tensors(before.facts), _tensors(after.facts))
    if found:
        given = [["not given" if value is None else value for value in (c.before, c.after)] for c in found]
        listed = "; ".join(f"{c.name}: {old} and {new}" for c, (old, new) in zip(found, given, strict=True))
        raise ResultError(
            f"The two results are not of one workload ({listed}). Throughput of different training steps cannot"
            " be compared. Name two results of the same dataset, model, image size, classes and optimizer."
        )


def _beside(before: Mapping[str, Value], after: Mapping[str, Value]) -> tuple[Change, ...]:
    """Two sets of facts; what one side lacks is None there."""
    return tuple(Change(name=name, before=before.get(name), after=after.get(name)) for name in {**before, **after})


def _changes(before: Mapping[str, Value], after: Mapping[str, Value]) -> tuple[Change, ...]:
    return tuple(change for change in _beside(before, after) if change.before != change.after)


def _tensors(facts: WorkloadFacts) -> dict[str, Value]:
    return {name: str(getattr(facts, name)) for name in ("input_shape", "input_dtype", "num_classes", "num_parameters")}


def _step(result: TuningResult) -> dict[str, Value]:
    """What makes the training step: where it differs, throughputs cannot be compared."""
    spec = result.config.workload
    return {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in _BESIDE_THE_STEP}


def _machine(host: HostFacts, device: Device) -> dict[str, Value]:
    memory = next((gpu.total_bytes for gpu in host.gpus if gpu.uuid == device.uuid), None)
    facts = {field.name: getattr(host, field.name) for field in fields(host) if field.name not in _OF_NOW}
    return {"device": device.name, "gpu_memory_total_bytes": memory, **facts}


def _facts_around(result: TuningResult) -> dict[str, Value]:
    """What of the workload may differ in a sound comparison, and of loadtune itself."""
    return {
        "loadtune_version": result.loadtune_version,
        "data_root": result.config.workload.data_root,
        "seed": result.config.workload.seed,
        "dataset_length": None if result.facts is None else result.facts.dataset_length,
    }


def _figures(runs: Sequence[Measurement]) -> dict[str, float]:
    """Means of what is a single number; timelines and figures per core are left to the result itself."""
    seen = [run.telemetry for run in runs if run.telemetry is not None]
    names = [field.name for field in fields(Telemetry) if field.name not in _OF_A_RUNS_LENGTH]
    own = ("wait_fraction", "first_batch_s", "peak_allocated_bytes", "samples_per_joule")
    figures = [(name, [getattr(run, name) for run in runs]) for name in own]
    figures += [(name, [getattr(each, name) for each in seen]) for name in names]
    known = [(name, [value for value in values if isinstance(value, (int, float))]) for name, values in figures]
    return {name: statistics.fmean(values) for name, values in known if values}


def _has_moved(figure: Change) -> bool:
    if not isinstance(figure.before, float) or not isinstance(figure.after, float):
        return False
    scale = 1.0 if figure.name.endswith("_fraction") else abs(figure.before)  # shares by points, all else relatively
    return abs(figure.after - figure.before) > _VISIBLE * scale


def _side(result: TuningResult, winner: Winner | None) -> Side:
    row = {} if winner is None else confirmed_row(result, winner.config, winner)
    return Side(
        created=result.created,
        hostname=result.host.hostname,
        device=result.device.name,
        winner=winner,
        figures={name: cell.text for name, cell in row.items()},
    )


def _mean(result: TuningResult, winner: Winner | None, objective: Objective) -> Mean | None:
    """Of a confirmation. None: it has no winner."""
    finalist = winner and finalist_of(result, winner.config)
    return mean_of(finalist.runs, [each.runs for each in result.finalists], objective) if finalist else None


def _notes(before: TuningResult, after: TuningResult, winners: Sequence[Winner | None]) -> Iterator[str]:
    for which, result, winner in zip(("first", "second"), (before, after), winners, strict=True):
        why = f" was cut short: {result.cut_short.rstrip('.')}" if result.cut_short else " went to its end"
        if winner is None and result.best is not None:
            yield f"The {which} run was given no batch size to keep, so it has no winner at one."
        elif winner is None:
            yield f"The {which} run{why}. It has no confirmed winner, so no throughput of it is compared."
        elif not was_confirmed_whole(result):
            yield f"The {which} run{why}. Fewer runs stand behind its figures than planned."
    old, new = before.config.objective, after.config.objective
    if old != new:
        yield (
            f"The first run looked for {old}, the second for {new}. What is compared is throughput: a winner by"
            " samples per joule need not be the fastest."
        )
