"""Figures for a program that plots them over time: github-action-benchmark."""

from loadtune.records import PRECISIONS, Score, Winner
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
