"""What the figures have in common: which trials have a figure, best and baseline, a configuration in words.

In: records. Out: the same, chosen and put in pairs.
"""

import textwrap

from loadtune.records import Measurement, Trial, TrialConfig, TuningResult
from loadtune.records.chosen import finalist_of
from loadtune.report.wording import interval_text, settings_text
from loadtune.units import bytes_text, efficiency_text, percent_text

_NAME_WIDTH = 26
"""Of a configuration's name beside a figure: half of a phone's width."""


def timed_trials(result: TuningResult) -> list[tuple[Trial, Measurement]]:
    """In the order in which they were run."""
    return [(trial, trial.measurement) for trial in result.trials if trial.measurement is not None]


def peak_bytes(measurement: Measurement, device_kind: str) -> int | None:
    """Of the GPU, as the training process allocated it; of a CPU's RAM, the bench and its workers."""
    if device_kind != "cpu":
        return measurement.peak_allocated_bytes
    return None if measurement.telemetry is None else measurement.telemetry.bench_rss_bytes


def whose_runs(result: TuningResult, config: TrialConfig) -> tuple[Measurement, ...]:
    """Confirmed runs of a configuration; where there are none, its trials."""
    confirmed = finalist_of(result, config)
    return confirmed.runs if confirmed else tuple(run for trial, run in timed_trials(result) if trial.config == config)


def leader(result: TuningResult) -> TrialConfig | None:
    """The confirmed winner, or the best trial where nothing was confirmed. None: nothing was measured."""
    if result.best is not None:
        return result.best.config
    objective = result.config.objective
    best = max(timed_trials(result), key=lambda pair: pair[1].scored(objective).value, default=None)
    return None if best is None else best[0].config


def baseline(result: TuningResult) -> TrialConfig | None:
    """As it was confirmed; else its loader settings as the search tried them. None: neither was measured."""
    if result.yours is not None and whose_runs(result, result.yours):
        return result.yours
    return next((trial.config for trial, _ in timed_trials(result) if trial.origin == "yours"), None)


def name_of(result: TuningResult, config: TrialConfig) -> str:
    """Its settings in lines that fit beside a figure, and whether it is best or baseline."""
    best = None if result.best is None else result.best.config
    whose = " and ".join(["best"] * (config == best) + ["baseline"] * (config == result.yours))
    return "<br>".join([*textwrap.wrap(settings_text(config), _NAME_WIDTH), *([whose] if whose else [])])


def hover(result: TuningResult, config: TrialConfig, measurement: Measurement, head: str = "") -> str:
    """What is shown of a point: settings, rate, samples per joule where they were looked for, wait, memory."""
    memory = peak_bytes(measurement, result.device.kind)
    by_energy = result.config.objective == "samples-per-joule"
    rate, wait = interval_text(measurement.scored("samples-per-s")), percent_text(measurement.wait_fraction)
    lines = [
        head,
        settings_text(config),
        f"{rate}, {wait} blocked in next(loader)",
        efficiency_text(measurement.samples_per_joule) if by_energy else "",
        "" if memory is None else f"peak {bytes_text(memory)}",
    ]
    return "<br>".join(one for one in lines if one)
