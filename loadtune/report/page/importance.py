"""How much of the differences between trials each setting explains by itself. In: a `TuningResult`. Out: a `Figure`.

Adjusted R² of the logarithm of what was looked for on one setting: for numbers a parabola over log2 of the value, for
choices their means. It is the plainest measure that is not fooled by many values and few trials; settings that were
tried together share what they explain, so bars need not add up to 100%.
"""

from collections.abc import Sequence

import numpy as np

from loadtune.records import SCORE_UNITS, TrialConfig, TuningResult
from loadtune.report.page.figure import BLUE, Figure, Panel, axis, bar
from loadtune.report.page.measured import SETTINGS, timed_trials

LEAST_TRIALS = 8
"""Measured ones. A parabola has three coefficients; with fewer than two trials for each it fits luck."""

_NUMBERS = {"batch size": 0, "workers": 1}
"""Settings whose logarithm is fitted, each with what is added before it is taken: there may be 0 workers. A prefetch
factor has too few values for a parabola; like all others it is a choice."""


def importance(result: TuningResult) -> Figure:
    timed, unit = timed_trials(result), SCORE_UNITS[result.config.objective]
    shares = setting_shares([one.config for one in timed], [one.score.value for one in timed])
    why = f"It takes {LEAST_TRIALS} measured trials that differ; there are {len(timed)}."
    return Figure(
        key="importance",
        title="Which setting matters",
        reading=f"How much of the differences in {unit} a setting explains by itself, among what was tried. A short "
        "bar: leave that setting as it is. Bars need not add up to 100%.",
        source=f"Adjusted R² of log({unit}) on one setting at a time, over the measured trials: a parabola in log2 "
        "for numbers, means for choices. The search did not try settings evenly, so read it as a hint.",
        panels=(_panel(shares),) if shares else (),
        missing=() if shares else (why,),
    )


def setting_shares(configs: Sequence[TrialConfig], scores: Sequence[float]) -> dict[str, float]:
    """Setting → share explained, 0 to 1, most first; only settings that differ. Empty: too few trials to say."""
    if len(scores) < LEAST_TRIALS or min(scores) <= 0 or min(scores) == max(scores):
        return {}
    found = {name: _explained(_terms(name, [of(config) for config in configs]), scores) for name, of in SETTINGS}
    known = [(name, share) for name, share in found.items() if share is not None]
    return dict(sorted(known, key=lambda pair: -pair[1]))


_Columns = list[list[float]]


def _terms(name: str, values: Sequence[int | str]) -> _Columns:
    added = _NUMBERS.get(name)
    if added is None:
        return _groups([str(value) for value in values])
    return _parabola([int(value) + added for value in values])


def _parabola(values: Sequence[float]) -> _Columns:
    """One power less than there are values, at most two."""
    logs = np.log2(values)
    return [list(logs**power) for power in range(1, min(3, len(set(values))))]


def _groups(values: Sequence[str]) -> _Columns:
    return [[float(value == one) for value in values] for one in sorted(set(values))[1:]]


def _explained(columns: _Columns, scores: Sequence[float]) -> float | None:
    """None: the setting is the same everywhere, or has as many values as there are trials."""
    count, terms = len(scores), len(columns)
    if not columns or count - terms - 1 <= 0:
        return None
    wanted = np.log(scores)
    design = np.column_stack([np.ones(count), *columns])
    fitted = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    left = float(((wanted - fitted) ** 2).sum()) / (count - terms - 1)
    spread = float(((wanted - wanted.mean()) ** 2).sum()) / (count - 1)
    return max(0.0, 1 - left / spread)


def _panel(shares: dict[str, float]) -> Panel:
    percents = [100 * share for share in reversed(shares.values())]
    names = [f"{name}, {percent:.0f}%" for name, percent in zip(reversed(shares), percents, strict=True)]
    bars = bar("", percents, names, names, marker={"color": BLUE}, orientation="h")
    layout = {
        "xaxis": axis("of the differences explained", range=[0, 100], ticksuffix="%"),
        "yaxis": {"type": "category"},
        "showlegend": False,
    }
    return Panel(data=(bars,), layout=layout, height_px=120 + 40 * len(names))
