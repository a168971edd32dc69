"""What changes bring, as marks of the roofline with their names in its margin: predicted, or measured.

In: a `TuningResult`. Out: traces, shapes and annotations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from loadtune.records import ChangeKind, Estimate, PredictedChange, Remedies, TrialConfig, TriedRemedy, TuningResult
from loadtune.report.page.figure import PINK, Trace, points, text
from loadtune.report.page.measured import whose_runs
from loadtune.report.remedies import interval_text
from loadtune.report.wording import remedy_text, settings_text
from loadtune.units import counted, number_text, percent_text, rate_text, ratio_text

Kind = Literal["winner with code changes", "measured with a change", "predicted with a change"]

_SYMBOLS: dict[Kind, str] = {
    "winner with code changes": "star",
    "measured with a change": "triangle-up",
    "predicted with a change": "triangle-up-open",
}
_CHANGE_NAMES: dict[ChangeKind, str] = {
    "twice_the_cores": "twice the cores",
    "half_the_loading": "half the loading time",
}
_MARKS_APART = 0.12
"""Between changes of one number of workers, in places on the axis, so that their intervals do not cover each other."""
_LABELS_APART = 0.14
"""Between two labels, as a share of the picture's height: each has two lines."""
_MOST_LABELS = 6
"""What the margin holds. The mouse on a mark tells the others' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One mark."""

    kind: Kind
    name: str
    num_workers: int
    value: float
    """Samples/s."""
    low: float | None
    high: float | None
    words: str
    named: bool = True
    """Whether the margin may name it."""


def shown_changes(result: TuningResult, predicted: Sequence[PredictedChange]) -> list[Change]:
    """The most important first: all that gain together, each that does, what was predicted, the others."""
    tried = _of_remedies(result.remedies, result) if result.remedies is not None else []
    found = [*tried, *map(_of_prediction, predicted)]
    return sorted(found, key=lambda one: (list(_SYMBOLS).index(one.kind), not one.named))


def change_places(changes: Sequence[Change], place: Callable[[int], float]) -> list[float]:
    """Those of one number of workers side by side."""
    before = [sum(other.num_workers == one.num_workers for other in changes[:n]) for n, one in enumerate(changes)]
    return [place(one.num_workers) + _MARKS_APART * count for one, count in zip(changes, before, strict=True)]


def change_marks(changes: Sequence[Change], places: Sequence[float]) -> list[Trace]:
    """One trace of each kind that there is."""
    found = list[Trace]()
    for kind, symbol in _SYMBOLS.items():
        here = [(one, place) for one, place in zip(changes, places, strict=True) if one.kind == kind]
        if not here:
            continue
        known = [one for one, _ in here]
        interval = {
            "type": "data",
            "array": [None if one.high is None else one.high - one.value for one in known],
            "arrayminus": [None if one.low is None else one.value - one.low for one in known],
            "thickness": 1.2,
            "width": 4,
        }
        marker: Trace = {"color": PINK, "symbol": symbol, "size": 15 if symbol == "star" else 11}
        marker |= {"line": {"width": 2}} if symbol.endswith("open") else {}
        where, values = [place for _, place in here], [one.value for one in known]
        found.append(points(kind, where, values, [one.words for one in known], marker=marker, error_y=interval))
    return found


def change_labels(
    changes: Sequence[Change], places: Sequence[float], top: float, right: float
) -> list[tuple[Trace, Trace]]:
    """A shape and an annotation each, in the margin: highest first and none on another, with a line from its mark."""
    named = [(one, place) for one, place in zip(changes, places, strict=True) if one.named][:_MOST_LABELS]
    named.sort(key=lambda pair: -pair[0].value)
    heights = _apart([one.value / top for one, _ in named])
    found = list[tuple[Trace, Trace]]()
    for (one, place), share in zip(named, heights, strict=True):
        height = share * top
        ends = {"x0": place, "x1": right, "y0": one.value, "y1": height}
        known = "" if one.low is None or one.high is None else f" ({number_text(one.low)}–{number_text(one.high)})"
        words = {"xref": "paper", "x": 1, "y": height, "text": f"{one.name}:<br>{number_text(one.value)}{known}"}
        look = {"showarrow": False, "xanchor": "left", "xshift": 4, "align": "left", "font": {"size": 11}}
        found.append(({"type": "line", **ends, "line": {"color": PINK, "width": 1, "dash": "dash"}}, words | look))
    return found


def _apart(heights: Sequence[float]) -> list[float]:
    """These, highest first, as shares of the picture: moved down off each other, and up again from the lower edge."""
    moved, above = list[float](), 1 + _LABELS_APART / 2
    for height in heights:
        above = min(height, above - _LABELS_APART)
        moved.append(above)
    below = -_LABELS_APART / 2
    for number in reversed(range(len(moved))):
        below = max(moved[number], below + _LABELS_APART)
        moved[number] = below
    return moved


def _of_prediction(change: PredictedChange) -> Change:
    rate, gain, name = change.samples_per_s, change.gain, _CHANGE_NAMES[change.kind]
    return Change(
        kind="predicted with a change",
        name=name,
        num_workers=change.num_workers,
        value=rate.value,
        low=rate.low,
        high=rate.high,
        words=f"{name}, {counted(change.num_workers, 'worker')}<br>{_predicted_words(rate.value, gain)}",
    )


def _of_remedies(remedies: Remedies, result: TuningResult) -> list[Change]:
    """The last that was kept has the mark of all that gain: it was measured with them."""
    found = list[Change]()
    if remedies.config is not None and remedies.samples_per_s is not None:
        found.append(_together(remedies.config, remedies.samples_per_s, remedies.half_width_fraction))
    for one in remedies.tried:
        if one.runs and one.config != remedies.config:
            found.append(_measured(one, with_interval=result.config.objective == "samples-per-s"))
        elif not one.runs and one.predicted is not None and (rate := _rate_of(one.base, remedies, result)) is not None:
            found.append(_predicted(one, one.predicted, rate))
    return found


def _together(config: TrialConfig, rate: float, half: float | None) -> Change:
    interval = "" if half is None else f" ± {percent_text(half)} (95%)"
    return Change(
        kind="winner with code changes",
        name="with code changes",
        num_workers=config.loader.num_workers,
        value=rate,
        low=None if half is None else rate * (1 - half),
        high=None if half is None else rate * (1 + half),
        words=f"winner with code changes<br>{settings_text(config)}<br>{rate_text(rate)}{interval}",
    )


def _measured(one: TriedRemedy, *, with_interval: bool) -> Change:
    """Its interval is that of the gain, which was measured in turn with the runs without the change."""
    rate, gain = fmean(run.samples_per_s for run in one.runs), one.gain
    known = gain if with_interval else None
    on_top = f" on top of {_names(one.base.remedies)}" if one.base.remedies else ""
    words = f"{one.title}{on_top}<br>{rate_text(rate)}, mean of {counted(len(one.runs), 'run')}"
    if gain is not None:
        words += f"<br>gain: {ratio_text(gain.ratio)} ({interval_text(gain.low, gain.high)})"
    return Change(
        kind="measured with a change",
        name=_label(one),
        num_workers=one.config.loader.num_workers,
        value=rate,
        low=None if known is None or known.low is None else rate * known.low / known.ratio,
        high=None if known is None or known.high is None else rate * known.high / known.ratio,
        words=words,
        named=one.kept,
    )


def _predicted(one: TriedRemedy, gain: Estimate, rate: float) -> Change:
    on_top = f" on top of {_names(one.base.remedies)}" if one.base.remedies else ""
    why = f"<br>not measured: {text(one.reason[:200])}" if one.reason else ""
    return Change(
        kind="predicted with a change",
        name=_label(one),
        num_workers=one.config.loader.num_workers,
        value=rate * gain.value,
        low=rate * gain.low,
        high=rate * gain.high,
        words=f"{one.title}{on_top}<br>{_predicted_words(rate * gain.value, gain)}{why}",
    )


def _predicted_words(rate: float, gain: Estimate) -> str:
    return f"{rate_text(rate)} predicted: {ratio_text(gain.value)} ({interval_text(gain.low, gain.high)})"


def _label(one: TriedRemedy) -> str:
    """``+ copy ahead`` on top of others."""
    return f"{'+ ' if one.base.remedies else ''}{remedy_text(one.name)}"


def _names(remedies: Sequence[str]) -> str:
    return " and ".join(map(remedy_text, remedies))


def _rate_of(base: TrialConfig, remedies: Remedies, result: TuningResult) -> float | None:
    """Measured samples/s of what a change was compared with. None: not known."""
    if base == remedies.config:
        return remedies.samples_per_s
    runs = next((one.runs for one in remedies.tried if one.config == base and one.runs), whose_runs(result, base))
    return fmean(run.samples_per_s for run in runs) if runs else None
