"""Figures for programs that plot them over time: github-action-benchmark and TensorBoard."""

from collections.abc import Iterable
from typing import NamedTuple

from loadtune.records import PRECISIONS, Measurement, Score, TuningResult, Winner
from loadtune.records.chosen import why_unconfirmed
from loadtune.report.forms.export_context import ExportContext
from loadtune.report.store import as_json
from loadtune.report.wording import settings_text


class Scalar(NamedTuple):
    """One point of a curve; TensorBoard draws one curve per tag."""

    tag: str
    step: int
    value: float


def github_action_benchmark(context: ExportContext) -> str:
    """A list for the tool ``customBiggerIsBetter``, in which larger is better.

    Names hold no settings, so that a curve continues when the winner changes; ``extra`` holds the settings.
    """
    result = context.result
    winners = [("best", result.best), ("best at your batch", result.best_at_your_batch)]
    entries = [
        entry
        for which, winner in winners
        if winner is not None and why_unconfirmed(result, winner) is None
        for entry in _winner_entries(context.workload, which, winner, context.machine)
    ]
    entries += [
        {
            "name": f"{context.workload}, {ceiling.precision}: safe batch",
            "unit": "samples",
            "value": ceiling.safe_batch_size,
            "extra": context.machine,
        }
        for ceiling in result.ceilings
    ]
    entries += [
        {
            "name": f"{context.workload}, {precision}: compute only",
            "unit": "samples/s",
            "value": point.samples_per_s,
            "extra": context.machine,
        }
        for precision in PRECISIONS
        if (point := result.compute_only(precision)) is not None
    ]
    return as_json(entries).decode()


def _winner_entries(workload: str, which: str, winner: Winner, machine: str) -> list[dict[str, object]]:
    """Its score. A winner by samples per joule also has a throughput, which is a curve of its own."""
    name, extra = f"{workload}: {which}", f"{settings_text(winner.config)}\n{machine}"
    if winner.efficiency is None:
        return [_entry(name, winner.picked_by, extra)]
    return [
        _entry(f"{name}, samples per joule", winner.picked_by, extra),
        _entry(f"{name} by samples per joule, throughput", winner.throughput, extra),
    ]


def _entry(name: str, score: Score, extra: str) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "unit": score.unit, "value": score.value, "extra": extra}
    return entry if score.half_width is None else entry | {"range": f"± {score.half_width:.4g}"}


def scalars(result: TuningResult) -> list[Scalar]:
    """Throughput, settings and utilization of each measured trial. Missing figures are left out."""
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
        ("trial/samples_per_joule", run.samples_per_joule),
        ("trial/wait_fraction", run.wait_fraction),
        ("utilization/gpu_fraction", None if telemetry is None else telemetry.gpu_utilization_fraction),
        ("utilization/cpu_fraction", None if telemetry is None else telemetry.cpu_utilization_fraction),
        ("memory/peak_allocated_bytes", run.peak_allocated_bytes),
        ("memory/peak_reserved_bytes", run.peak_reserved_bytes),
        ("memory/bench_rss_bytes", None if telemetry is None else telemetry.bench_rss_bytes),
    )
