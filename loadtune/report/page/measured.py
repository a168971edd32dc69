"""What the figures have in common: which trials have a rate, what memory they took, and a configuration in words.

In: records. Out: the same, chosen and put in pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.records import Measurement, Trial, TrialConfig, TuningResult
from loadtune.report.wording import recipe_text, settings_text
from loadtune.units import bytes_text, percent_text, rate_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A trial that ended with a figure."""

    number: int
    config: TrialConfig
    trial: Trial
    measurement: Measurement

    @property
    def rate(self) -> float:
        return self.measurement.samples_per_s


def timed_trials(result: TuningResult) -> tuple[Timed, ...]:
    """In the order in which they were run."""
    return tuple(
        Timed(number=trial.number, config=trial.config, trial=trial, measurement=trial.measurement)
        for trial in result.trials
        if trial.measurement is not None
    )


def peak_bytes(measurement: Measurement, device_kind: str) -> int | None:
    """Of the GPU, as the training process allocated it; of a CPU's RAM, the bench and its workers."""
    if device_kind != "cpu":
        return measurement.peak_allocated_bytes
    return None if measurement.telemetry is None else measurement.telemetry.bench_rss_bytes


def gpu_busy_fraction(measurement: Measurement) -> float | None:
    return None if measurement.telemetry is None else measurement.telemetry.gpu_utilization_fraction


def whose_runs(result: TuningResult, config: TrialConfig) -> tuple[Measurement, ...]:
    """Confirmed runs of a configuration; where there are none, its trials."""
    confirmed = [run for finalist in result.finalists if finalist.config == config for run in finalist.runs]
    return tuple(confirmed or [timed.measurement for timed in timed_trials(result) if timed.config == config])


def leader(result: TuningResult) -> TrialConfig | None:
    """The confirmed winner, or the best trial where nothing was confirmed. None: nothing was measured."""
    if result.best is not None:
        return result.best.config
    objective = result.config.objective
    best = max(timed_trials(result), key=lambda timed: timed.measurement.score(objective), default=None)
    return None if best is None else best.config


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
    whose = " and ".join(["best"] * (config == best) + ["yours"] * (config == result.yours))
    more = [config.precision, *(["pinned"] if loader.pin_memory else [])]
    if loader.num_workers and loader.prefetch_factor != 2:  # 2 is PyTorch's default
        more.append(f"prefetch {loader.prefetch_factor}")
    settings = f"{loader.batch_size} × {loader.num_workers} w<br>{', '.join(more)}"
    return f"{settings}<br>{whose}" if whose else settings


def rate_words(measurement: Measurement) -> str:
    """``4,210/s ± 1.3%``."""
    half = measurement.half_width_fraction
    return rate_text(measurement.samples_per_s) + ("" if half is None else f" ± {percent_text(half, 1)}")


def hover(config: TrialConfig, measurement: Measurement, device_kind: str, head: str = "") -> str:
    """What is shown of a point: settings, rate, wait, memory."""
    memory = peak_bytes(measurement, device_kind)
    lines = [
        head,
        settings_text(config),
        f"{rate_words(measurement)}, {percent_text(measurement.wait_fraction)} data wait",
        "" if memory is None else f"peak {bytes_text(memory)}",
    ]
    return "<br>".join(one for one in lines if one)
