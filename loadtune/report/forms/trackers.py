"""Figures for what follows them over time: github-action-benchmark, and scalars of each trial for TensorBoard."""

from collections.abc import Iterable
from typing import NamedTuple

from loadtune.records import Measurement, TuningResult, Winner
from loadtune.report.forms.handed import Handed
from loadtune.report.store import as_json
from loadtune.report.wording import settings_text


class Scalar(NamedTuple):
    """One point of a curve; TensorBoard draws one curve a tag."""

    tag: str
    step: int
    value: float


def github_action_benchmark(handed: Handed) -> str:
    """A list for its tool ``customBiggerIsBetter``: each entry larger for better. Names hold no setting, so that a
    curve goes on when the winner changes; that stands in ``extra``."""
    result = handed.result
    entries = [_winner_entry(handed.workload, "best", result.best, handed.machine)]
    entries += [_winner_entry(handed.workload, "best at your batch", result.best_at_your_batch, handed.machine)]
    entries += [
        {
            "name": f"{handed.workload}, {ceiling.precision}: safe batch",
            "unit": "samples",
            "value": ceiling.safe_batch_size,
            "extra": handed.machine,
        }
        for ceiling in result.ceilings
    ]
    fastest: dict[str, float] = {}
    for point in result.compute_points:
        precision = point.recipe.precision
        fastest[precision] = max(fastest.get(precision, 0.0), point.samples_per_s)
    entries += [
        {
            "name": f"{handed.workload}, {precision}: compute only",
            "unit": "samples/s",
            "value": rate,
            "extra": handed.machine,
        }
        for precision, rate in fastest.items()
    ]
    return as_json([entry for entry in entries if entry is not None]).decode()


def _winner_entry(workload: str, which: str, winner: Winner | None, machine: str) -> dict[str, object] | None:
    if winner is None:
        return None
    entry: dict[str, object] = {
        "name": f"{workload}: {which}",
        "unit": "samples/s",
        "value": winner.samples_per_s,
        "extra": f"{settings_text(winner.config)}\n{machine}",
    }
    if winner.half_width_fraction is not None:
        entry["range"] = f"± {winner.samples_per_s * winner.half_width_fraction:.4g}"
    return entry


def scalars(result: TuningResult) -> list[Scalar]:
    """Per trial that was measured: its rate, its settings, and what the machine did. Missing figures are left out."""
    found = []
    for trial in result.trials:
        if trial.measurement is None:
            continue
        loader = trial.config.loader
        settings: list[tuple[str, float | None]] = [
            ("config/batch_size", loader.batch_size),
            ("config/num_workers", loader.num_workers),
        ]
        for tag, value in (*settings, *_figures(trial.measurement)):
            if value is not None:
                found.append(Scalar(tag, trial.number, float(value)))
    return found


def _figures(run: Measurement) -> Iterable[tuple[str, float | None]]:
    telemetry = run.telemetry
    return (
        ("trial/samples_per_s", run.samples_per_s),
        ("trial/wait_fraction", run.wait_fraction),
        ("utilization/gpu_fraction", None if telemetry is None else telemetry.gpu_utilization_fraction),
        ("utilization/cpu_fraction", None if telemetry is None else telemetry.cpu_utilization_fraction),
        ("memory/peak_allocated_bytes", run.peak_allocated_bytes),
        ("memory/peak_reserved_bytes", run.peak_reserved_bytes),
        ("memory/bench_rss_bytes", None if telemetry is None else telemetry.bench_rss_bytes),
    )
