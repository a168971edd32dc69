"""What the figures have in common: which trials have a figure, best and baseline, a configuration in words.

In: records. Out: the same, chosen and put in pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.records import Measurement, Objective, Score, Trial, TrialConfig, TuningResult
from loadtune.report.wording import recipe_text, settings_text
from loadtune.units import bytes_text, counted, efficiency_text, percent_text, rate_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A trial that ended with a figure."""

    number: int
    config: TrialConfig
    trial: Trial
    measurement: Measurement
    objective: Objective
    """What its run looked for."""

    @property
    def rate(self) -> float:
        return self.measurement.samples_per_s

    @property
    def score(self) -> Score:
        """Throughput, or samples per joule where that is the objective."""
        return self.measurement.scored(self.objective)


def timed_trials(result: TuningResult) -> tuple[Timed, ...]:
    """In the order in which they were run."""
    return tuple(
        Timed(
            number=trial.number,
            config=trial.config,
            trial=trial,
            measurement=trial.measurement,
            objective=result.config.objective,
        )
        for trial in result.trials
        if trial.measurement is not None
    )


def peak_bytes(measurement: Measurement, device_kind: str) -> int | None:
    """Of the GPU, as the training process allocated it; of a CPU's RAM, the bench and its workers."""
    if device_kind != "cpu":
        return measurement.peak_allocated_bytes
    return None if measurement.telemetry is None else measurement.telemetry.bench_rss_bytes


def whose_runs(result: TuningResult, config: TrialConfig) -> tuple[Measurement, ...]:
    """Confirmed runs of a configuration; where there are none, its trials."""
    confirmed = [run for finalist in result.finalists if finalist.config == config for run in finalist.runs]
    return tuple(confirmed or [timed.measurement for timed in timed_trials(result) if timed.config == config])


def leader(result: TuningResult) -> TrialConfig | None:
    """The confirmed winner, or the best trial where nothing was confirmed. None: nothing was measured."""
    if result.best is not None:
        return result.best.config
    best = max(timed_trials(result), key=lambda timed: timed.score.value, default=None)
    return None if best is None else best.config


def baseline(result: TuningResult) -> TrialConfig | None:
    """As it was confirmed; else its loader settings as the search tried them. None: neither was measured."""
    if result.yours is not None and whose_runs(result, result.yours):
        return result.yours
    return next((timed.config for timed in timed_trials(result) if timed.trial.origin == "yours"), None)


def short_names(result: TuningResult, configs: Sequence[TrialConfig]) -> list[str]:
    """A few words each, in two lines or three, and no two alike: plotly.js puts what is named alike in one place."""
    names = [_short_name(result, config) for config in configs]
    named = [
        f"{name}<br>{recipe_text(config.recipe)}" if names.count(name) > 1 else name
        for name, config in zip(names, configs, strict=True)
    ]
    return [
        f"{name} ({named[:place].count(name) + 1})" if name in named[:place] else name
        for place, name in enumerate(named)
    ]


def _short_name(result: TuningResult, config: TrialConfig) -> str:
    loader, best = config.loader, None if result.best is None else result.best.config
    whose = " and ".join(["best"] * (config == best) + ["baseline"] * (config == result.yours))
    more = [config.precision, *(["pinned"] if loader.pin_memory else [])]
    if loader.num_workers and loader.prefetch_factor != 2:  # 2 is PyTorch's default
        more.append(f"prefetch {loader.prefetch_factor}")
    settings = f"batch {loader.batch_size}<br>{counted(loader.num_workers, 'worker')}, {', '.join(more)}"
    return f"{settings}<br>{whose}" if whose else settings


def rate_words(measurement: Measurement) -> str:
    """``4,210/s ± 1.3%``."""
    half = measurement.half_width_fraction
    return rate_text(measurement.samples_per_s) + ("" if half is None else f" ± {percent_text(half, 1)}")


def hover(result: TuningResult, config: TrialConfig, measurement: Measurement, head: str = "") -> str:
    """What is shown of a point: settings, rate, samples per joule where they were looked for, wait, memory."""
    memory = peak_bytes(measurement, result.device.kind)
    by_energy = result.config.objective == "samples-per-joule"
    lines = [
        head,
        settings_text(config),
        f"{rate_words(measurement)}, {percent_text(measurement.wait_fraction)} blocked in next(loader)",
        efficiency_text(measurement.samples_per_joule) if by_energy else "",
        "" if memory is None else f"peak {bytes_text(memory)}",
    ]
    return "<br>".join(one for one in lines if one)
