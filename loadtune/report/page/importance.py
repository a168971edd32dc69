"""How much of the differences between trials each setting explains by itself. In: a `TuningResult`. Out: a `Figure`.

Adjusted R² of the logarithm of throughput on one setting: for numbers a parabola over log2 of the value, for choices
their means. It is the plainest measure that is not fooled by many values and few trials; settings that were tried
together share what they explain, so bars need not add up to 100%.
"""

from collections.abc import Callable, Sequence

import numpy as np

from loadtune.records import TrialConfig, TuningResult
from loadtune.report.page.figure import BLUE, Figure, Panel, axis, bar
from loadtune.report.page.measured import timed_trials

LEAST_TRIALS = 8
"""Measured ones. A parabola has three coefficients; with fewer than two trials for each it fits luck."""

_NUMBERS: tuple[tuple[str, Callable[[TrialConfig], float]], ...] = (
    ("batch size", lambda config: config.batch_size),
    ("workers", lambda config: config.loader.num_workers + 1),
)
_CHOICES: tuple[tuple[str, Callable[[TrialConfig], str]], ...] = (
    ("pinning", lambda config: str(config.loader.pin_memory)),
    ("precision", lambda config: config.precision),
    ("prefetch", lambda config: str(config.loader.prefetch_factor)),
)


def importance(result: TuningResult) -> Figure:
    timed = timed_trials(result)
    shares = setting_shares([one.config for one in timed], [one.rate for one in timed])
    why = f"It takes {LEAST_TRIALS} measured trials that differ; there are {len(timed)}."
    return Figure(
        key="importance",
        title="Which setting matters",
        reading="How much of the differences in throughput a setting explains by itself, among what was tried. A short "
        "bar: leave that setting as it is. Bars need not add up to 100%.",
        source="Adjusted R² of log(samples/s) on one setting at a time, over the measured trials: a parabola in log2 "
        "for numbers, means for choices. The search did not try settings evenly, so read it as a hint.",
        panels=(_panel(shares),) if shares else (),
        missing=() if shares else (why,),
    )


def setting_shares(configs: Sequence[TrialConfig], rates: Sequence[float]) -> dict[str, float]:
    """Setting → share explained, 0 to 1, most first; only settings that differ. Empty: too few trials to say."""
    if len(rates) < LEAST_TRIALS or min(rates) <= 0 or min(rates) == max(rates):
        return {}
    found = {name: _explained(_parabola([of(config) for config in configs]), rates) for name, of in _NUMBERS}
    found |= {name: _explained(_groups([of(config) for config in configs]), rates) for name, of in _CHOICES}
    known = [(name, share) for name, share in found.items() if share is not None]
    return dict(sorted(known, key=lambda pair: -pair[1]))


_Columns = list[list[float]]


def _parabola(values: Sequence[float]) -> _Columns:
    """One power less than there are values, at most two."""
    logs = np.log2(values)
    return [list(logs**power) for power in range(1, min(3, len(set(values))))]


def _groups(values: Sequence[str]) -> _Columns:
    return [[float(value == one) for value in values] for one in sorted(set(values))[1:]]


def _explained(columns: _Columns, rates: Sequence[float]) -> float | None:
    """None: the setting is the same everywhere, or has as many values as there are trials."""
    count, terms = len(rates), len(columns)
    if not columns or count - terms - 1 <= 0:
        return None
    wanted = np.log(rates)
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
