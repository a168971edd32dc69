"""Forms for any program: JSON, environment variables, Markdown."""

from loadtune.records import Recipe
from loadtune.report.bottleneck import bottleneck_text
from loadtune.report.export import loader_code, recipe_code, structure_of
from loadtune.report.forms.export_context import ExportContext
from loadtune.report.store import as_json
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, percent_text, ratio_text

_PREFIX = "LOADTUNE_"


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
            "efficiency": winner.efficiency,
            "workload": context.workload,
            "device": result.device,
            "num_usable_cores": result.host.num_usable_cores,
            "torch": result.host.torch,
            "created": result.created,
            "loadtune_version": result.loadtune_version,
        }
    ).decode()


def env(context: ExportContext) -> str:
    """``LOADTUNE_BATCH_SIZE=256``, …; booleans as 1 and 0. No comments, because $GITHUB_ENV allows none."""
    recipe = context.config.recipe
    values = context.loader_kwargs
    if not context.has_own_step:
        values |= {
            "precision": recipe.precision,
            "memory_format": recipe.memory_format,
            "fused_optimizer": recipe.fused_optimizer,
            "compile": recipe.compile,
        }
    words = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return "".join(f"{_PREFIX}{name.upper()}={value}\n" for name, value in words.items())


def markdown(context: ExportContext) -> str:
    """A table and code for a pull request, a wiki or a job's summary."""
    config, kind = context.config, context.result.device.kind
    rows = [(name, f"`{value}`") for name, value in context.loader_kwargs.items()]
    rows += [
        ("precision", PRECISION_TEXT[config.precision]),
        *([] if context.has_own_step else _recipe_rows(config.recipe)),
        ("throughput", f"**{context.throughput}**"),
        ("speed-up", _speedup(context)),
        *([] if context.efficiency is None else [("chosen for", f"**{context.efficiency}**")]),
        ("share of compute-only rate", percent_text(context.winner.compute_fraction)),
        ("bottleneck", _bound(context)),
    ]
    table = "".join(f"| {name} | {value} |\n" for name, value in rows)
    step = recipe_code(config, context.result.config.workload, kind, structure_of(context.result))
    return (
        f"### {_escaped(context.workload)} on {_escaped(context.result.device.name)}\n\n"
        f"| | |\n|---|---|\n{table}\n"
        f"{_escaped(context.provenance)}\n\n"
        f"```python\n{loader_code(context.result, config)}\n{step}```\n"
    )


def _recipe_rows(recipe: Recipe) -> list[tuple[str, str]]:
    return [
        ("memory format", recipe.memory_format),
        ("fused optimizer", "yes" if recipe.fused_optimizer else "no"),
        *([("torch.compile", "yes")] if recipe.compile else []),
    ]


def _speedup(context: ExportContext) -> str:
    winner = context.winner
    if winner.config == context.result.yours:
        return "none"
    if winner.speedup_low is None or winner.speedup_high is None:
        return MISSING if winner.speedup is None else f"{ratio_text(winner.speedup)}, too few runs for an interval"
    return f"{ratio_text(winner.speedup)} ({ratio_text(winner.speedup_low)} to {ratio_text(winner.speedup_high)})"


def _bound(context: ExportContext) -> str:
    """It is of the best at any batch size only."""
    result = context.result
    return bottleneck_text(result.bottleneck) if context.winner == result.best else MISSING


def _escaped(text: str) -> str:
    """Names may hold characters that are markup in Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_|<>[]#" else char for char in " ".join(text.split()))
