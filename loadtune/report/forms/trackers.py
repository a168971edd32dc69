"""Figures for a program that plots them over time: github-action-benchmark."""

from loadtune.records import PRECISIONS, Winner
from loadtune.records.chosen import why_unconfirmed
from loadtune.report.forms.export_context import ExportContext
from loadtune.report.store import as_json
from loadtune.report.wording import settings_text


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
        for entry in _winner_entries(context, which, winner)
    ]
    for ceiling in result.ceilings:
        name = f"{context.workload}, {ceiling.precision}: safe batch"
        entries.append(_entry(name, "samples", ceiling.safe_batch_size, context.machine))
    for precision in PRECISIONS:
        if (point := result.compute_only(precision)) is not None:
            name = f"{context.workload}, {precision}: compute only"
            entries.append(_entry(name, "samples/s", point.samples_per_s, context.machine))
    return as_json(entries).decode()


def _winner_entries(context: ExportContext, which: str, winner: Winner) -> list[dict[str, object]]:
    """Its score. A winner by samples per joule also has a throughput, which is a curve of its own."""
    name, extra = f"{context.workload}: {which}", f"{settings_text(winner.config)}\n{context.machine}"
    scores = {name: winner.picked_by}
    if winner.efficiency is not None:
        names = (f"{name}, samples per joule", f"{name} by samples per joule, throughput")
        scores = dict(zip(names, (winner.picked_by, winner.throughput), strict=True))
    return [_entry(each, score.unit, score.value, extra, score.half_width) for each, score in scores.items()]


def _entry(name: str, unit: str, value: float, extra: str, half_width: float | None = None) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "unit": unit, "value": value, "extra": extra}
    return entry if half_width is None else entry | {"range": f"± {half_width:.4g}"}
