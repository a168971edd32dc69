"""Two results of one workload side by side: what differs, the ratio of their rates, and how it is shown. Pure.

It claims no difference that the runs of both sides do not show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from loadtune.errors import ResultError, UsageError
from loadtune.records.answer import doubt_of, finalist_of
from loadtune.records.facts import HostFacts
from loadtune.records.result import TuningResult, Winner
from loadtune.report.tables import Section, Table, View, confirmed_row
from loadtune.report.wording import field_text, gain_text
from loadtune.statistics.interval import Interval, ratio_of
from loadtune.units import MISSING, bytes_text, percent_text

Outcome = Literal["held", "fell", "unclear"]
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact, before and after. The name ends in its unit where it has one."""

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
    """Of the winners' throughput. None: one side has none."""
    changes: tuple[Change, ...]
    """Machine, versions, workload: only what is not the same."""
    notes: tuple[str, ...] = ()
    """What to beware of: whole sentences."""
    outcome: Outcome | None = None
    """Of the ratio's whole interval: ``fell``, it is below 1 − tolerance; ``held``, above; ``unclear``, neither, or an
    answer is not confirmed. None: no tolerance was given."""
    verdict: str | None = None
    """That in words."""


_OF_NOW = ("num_listed_cores", "ram_total_bytes", "ram_available_bytes", "shm_free_bytes", "gpus")
"""Of `HostFacts`: what limits in force replace, or what changes while a machine stays as it is."""

_BESIDE_THE_STEP = ("data_root", "seed", "objects")
"""Of a `WorkloadSpec`: what does not make another training step of it."""
_OF_THE_STEP = ("input_shape", "input_dtype", "num_classes", "num_parameters")
"""Of `WorkloadFacts`: what the names of a workload may hide."""


def compare(
    before: TuningResult,
    after: TuningResult,
    *,
    keep_batch_size: bool = False,
    tolerance_fraction: float | None = None,
) -> Comparison:
    """What changed. ``keep_batch_size`` compares the winners at the users' batch sizes. ``tolerance_fraction``, above 0
    and below 1: the loss of throughput that passes, for a verdict.

    Raises ResultError where the two trained different things, UsageError for another tolerance.
    """
    if tolerance_fraction is not None and not 0 < tolerance_fraction < 1:
        raise UsageError(f"tolerance_fraction is {tolerance_fraction:g}; it must be above 0 and below 1, as in 0.05.")
    known = before.facts is not None and after.facts is not None
    if found := _changes(_trained(before, known), _trained(after, known)):
        listed = "; ".join(f"{change.name}: {change.before} and {change.after}" for change in found)
        raise ResultError(
            f"The two results are not of one workload ({listed}). Throughput of different training steps cannot"
            " be compared. Name two results of the same dataset, model, image size, classes and optimizer."
        )
    both = [(result, result.best_at_your_batch if keep_batch_size else result.best) for result in (before, after)]
    confirmed = [(result, each) for result, winner in both if (each := finalist_of(result.finalists, winner))]
    means = [each.mean_among(result.finalists) for result, each in confirmed]
    ratio = ratio_of(means[0], means[1]) if len(means) > 1 else None
    notes = (*_notes("first", *both[0]), *_notes("second", *both[1]))
    outcome, verdict = (None, None) if tolerance_fraction is None else _judged(ratio, notes, tolerance_fraction)
    return Comparison(
        workload=before.config.workload.title,
        before=_side(*both[0]),
        after=_side(*both[1]),
        ratio=ratio,
        changes=_changes(_around(before), _around(after)),
        notes=notes,
        outcome=outcome,
        verdict=verdict,
    )


def _judged(ratio: Interval | None, notes: Sequence[str], tolerance_fraction: float) -> tuple[Outcome, str]:
    """``notes``: why an answer is not confirmed, or not there."""
    tolerance, least = f"{100 * tolerance_fraction:g}%", 1 - tolerance_fraction
    if notes or ratio is None or ratio.low is None or ratio.high is None:
        return "unclear", "Unclear. An answer that is not confirmed tells no loss."
    if ratio.high < least:
        value, most, fewest = (percent_text(1 - rate, 1) for rate in (ratio.value, ratio.low, ratio.high))
        lost = f"lost {value} of the throughput ({fewest} to {most})"
        return "fell", f"Fell. The second {lost}, more than the tolerance of {tolerance}."
    if ratio.low > least:
        return "held", f"Held. By its whole interval, the second lost less than {tolerance} of the throughput."
    todo = "Run both again with a larger --time-budget."
    return "unclear", f"Unclear. The interval includes a loss of {tolerance}: it may have lost more or less. {todo}"


def view(found: Comparison) -> View:
    sides = (found.before, found.after)
    same = () if found.changes else ("Machine, versions and workload are the same in both.",)
    ratio = "There is no winner on one side, so there is no ratio."
    if found.ratio is not None:
        told_apart = ": not told apart" if found.ratio.holds(1.0) else ""
        ratio = f"The second is {gain_text(found.ratio)} of the first{told_apart}."
    names = found.before.figures | found.after.figures
    figures = ((name, *(side.figures.get(name, MISSING) for side in sides)) for name in names)
    winners = Table(
        title="Winners",
        columns=("", *(f"{side.hostname}\n{side.created[:19]}" for side in sides)),
        rows=(("device", *(side.device for side in sides)), *figures),
    )
    changes = Table(
        title="What changed around it",
        columns=("", "before", "after"),
        rows=tuple((field_text(c.name), _shown(c.name, c.before), _shown(c.name, c.after)) for c in found.changes),
    )
    return [
        f"{found.workload}: {found.before.created} → {found.after.created}",
        winners,
        changes,
        Section(title="Throughput", lines=(ratio, *filter(None, [found.verdict]))),
        Section(title="Notes", lines=(*found.notes, *same)),
    ]


def _shown(name: str, value: Value) -> str:
    if value is None:
        return MISSING
    return bytes_text(value) if name.endswith("_bytes") and not isinstance(value, str) else str(value)


def _trained(result: TuningResult, with_facts: bool) -> dict[str, Value]:
    """What makes the training step: where it differs, throughputs cannot be compared."""
    spec = result.config.workload
    named = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name not in _BESIDE_THE_STEP}
    named |= {name: str(getattr(result.facts, name)) for name in _OF_THE_STEP} if with_facts else {}
    return {name: "not given" if value is None else value for name, value in named.items()}


def _changes(before: Mapping[str, Value], after: Mapping[str, Value]) -> tuple[Change, ...]:
    """What is not the same; what one side lacks is None there."""
    sides = ((name, before.get(name), after.get(name)) for name in {**before, **after})
    return tuple(Change(name=name, before=old, after=new) for name, old, new in sides if old != new)


def _around(result: TuningResult) -> dict[str, Value]:
    """What may differ in a sound comparison: of the machine, the workload, and loadtune itself."""
    host, device = result.host, result.device
    memory = next((gpu.total_bytes for gpu in host.gpus if gpu.uuid == device.uuid), None)
    return {
        "device": device.name,
        "gpu_memory_total_bytes": memory,
        **{field.name: getattr(host, field.name) for field in fields(HostFacts) if field.name not in _OF_NOW},
        "loadtune_version": result.loadtune_version,
        "data_root": result.config.workload.data_root,
        "seed": result.config.workload.seed,
        "dataset_length": None if result.facts is None else result.facts.dataset_length,
    }


def _side(result: TuningResult, winner: Winner | None) -> Side:
    row = {} if winner is None else confirmed_row(result, winner.config, winner)
    figures = {name: cell.text for name, cell in row.items()}
    device, hostname = result.device.name, result.host.hostname
    return Side(created=result.created, hostname=hostname, device=device, winner=winner, figures=figures)


def _notes(which: str, result: TuningResult, winner: Winner | None) -> tuple[str, ...]:
    if winner is not None:
        doubt = doubt_of(result, winner)
        return () if doubt is None else (f"The answer of the {which} run is not confirmed: {doubt}",)
    if result.best is not None:
        return (f"The {which} run was given no batch size to keep, so it has no winner at one.",)
    why = f"was cut short: {result.cut_short.rstrip('.')}" if result.cut_short else "went to its end"
    return (f"The {which} run {why}. It has no confirmed winner, so no throughput of it is compared.",)
