"""All forms by name, and those that no framework needs. In: a result. Out: text that another program reads as it is."""

from collections.abc import Callable, Mapping

from loadtune.errors import UsageError
from loadtune.records.answer import handed_winner
from loadtune.records.config import PRECISIONS, SCORE_UNITS, Objective
from loadtune.records.interval import Interval
from loadtune.records.result import TuningResult, Winner
from loadtune.report.export import loader_code, step_code
from loadtune.report.figures import figures
from loadtune.report.forms.export_context import ExportContext, assignment, comment
from loadtune.report.forms.frameworks import accelerate, lightning, transformers
from loadtune.report.sentences import bottleneck_sentence, kept_code
from loadtune.report.store import as_json
from loadtune.report.wording import settings_text


def export(result: TuningResult, format: str, *, keep_batch_size: bool = False) -> str:
    """The answer of a result as text for another program.

    ``format`` is a key of `FORMS`. ``keep_batch_size`` exports the answer at the batch size that the run was given,
    instead of that at any batch size. Warns with UserWarning where the answer is not confirmed. Raises UsageError for
    an unknown format, ResultError where the result has no answer.
    """
    form = FORMS.get(format)
    if form is None:
        raise UsageError(f"{format!r} is not a text format. Allowed: {', '.join(FORMS)}.")
    return form(ExportContext(result, handed_winner(result, keep_batch_size=keep_batch_size)))


def python_module(context: ExportContext) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    with_recipe = "" if context.has_own_step else " Train with RECIPE too: the throughput was measured with both."
    parts = [
        comment(context.provenance, f"Use: {context.loader_call}.{with_recipe}"),
        assignment("LOADER_KWARGS", context.loader_kwargs),
    ]
    parts += [assignment("RECIPE", context.recipe)] if context.recipe else []
    return "\n".join(parts)


def pytorch_loop(context: ExportContext) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``.

    Changes of the code that gain follow as comments, because they belong into several places of that script.
    """
    changes = kept_code(context.result) if context.winner == context.result.best else ()
    lines = [line for each in changes for line in ("", each.title, *each.lines)]
    on_top = [f"# {line}".rstrip() for line in ("What gains on top, in your own code:", *lines)] if lines else []
    code = [loader_code(context.result, context.config), step_code(context.result, context.config)]
    return "\n".join([comment(context.provenance), *code, *on_top, *([""] if on_top else [])])


def json(context: ExportContext) -> str:
    """The loader's arguments, the recipe and their throughput. The whole record is ``result.json``."""
    winner, result = context.winner, context.result
    return as_json(
        {
            "loader": context.loader_kwargs,
            "recipe": None if context.has_own_step else context.config.recipe,
            "optimizer": None if context.has_own_step else result.config.workload.optimizer,
            "samples_per_s": winner.samples_per_s,
            "half_width_fraction": winner.half_width_fraction,
            "objective": result.config.objective,
            "samples_per_joule": winner.samples_per_joule,
            "efficiency_gain": winner.efficiency_gain,
            "workload": result.config.workload.title,
            "device": result.device,
            "num_usable_cores": result.host.num_usable_cores,
            "torch": result.host.torch,
            "created": result.created,
            "loadtune_version": result.loadtune_version,
        }
    ).decode()


def env(context: ExportContext) -> str:
    """``LOADTUNE_BATCH_SIZE=256``, …; booleans as 1 and 0. No comments, because $GITHUB_ENV allows none."""
    values = context.loader_kwargs | context.recipe
    words = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return "".join(f"LOADTUNE_{name.upper()}={value}\n" for name, value in words.items())


def markdown(context: ExportContext) -> str:
    """The table of the page and code, for a pull request, a wiki or a job's summary."""
    config, result = context.config, context.result
    table = figures(result, {"answer": context.winner})
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    limit = bottleneck_sentence(result) if context.winner == result.best else ()  # of the best at any batch size only
    return (
        f"### {_escaped(result.config.workload.title)} on {_escaped(result.device.name)}\n\n"
        + "".join(f"| {' | '.join(cell.strip() for cell in row)} |\n" for row in rows)
        + "".join(f"\n{_escaped(sentence)}\n" for sentence in (context.provenance, *limit))
        + f"\n```python\n{loader_code(result, config)}\n{step_code(result, config)}```\n"
    )


def _escaped(text: str) -> str:
    """Names may hold characters that are markup in Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_|<>[]#" else char for char in " ".join(text.split()))


def github_action_benchmark(context: ExportContext) -> str:
    """A list for the tool ``customBiggerIsBetter``, in which larger is better.

    Names hold no settings, so that a curve continues when the winner changes; ``extra`` holds the settings.
    """
    result, workload = context.result, context.result.config.workload.title
    winners = {"best": result.best, "best at your batch": result.best_at_your_batch}
    entries = [
        _entry(name, SCORE_UNITS[objective], score, f"{settings_text(winner.config)}\n{context.machine}")
        for which, winner in winners.items()
        if winner is not None
        for name, objective, score in _curves(f"{workload}: {which}", winner)
    ]
    for ceiling in result.ceilings:
        safe = Interval(value=ceiling.safe_batch_size)
        entries.append(_entry(f"{workload}, {ceiling.precision}: safe batch", "samples", safe, context.machine))
    for precision in PRECISIONS:
        if (point := result.compute_only(precision)) is not None:
            rate, name = Interval(value=point.samples_per_s), f"{workload}, {precision}: compute only"
            entries.append(_entry(name, "samples/s", rate, context.machine))
    return as_json(entries).decode()


def _curves(name: str, winner: Winner) -> list[tuple[str, Objective, Interval]]:
    """A winner by samples per joule also has a throughput, which is a curve of its own."""
    if winner.samples_per_joule is None:
        return [(name, "samples-per-s", winner.throughput)]
    return [
        (f"{name}, samples per joule", "samples-per-joule", winner.samples_per_joule),
        (f"{name} by samples per joule, throughput", "samples-per-s", winner.throughput),
    ]


def _entry(name: str, unit: str, figure: Interval, extra: str) -> dict[str, object]:
    entry: dict[str, object] = {"name": name, "unit": unit, "value": figure.value, "extra": extra}
    return entry if figure.half_width is None else entry | {"range": f"± {figure.half_width:.4g}"}


FORMS: Mapping[str, Callable[[ExportContext], str]] = {
    "python": python_module,
    "pytorch": pytorch_loop,
    "lightning": lightning,
    "hf": transformers,
    "accelerate": accelerate,
    "json": json,
    "env": env,
    "markdown": markdown,
    "github-action-benchmark": github_action_benchmark,
}
