"""Forms for any program: JSON, environment variables, Markdown."""

from collections.abc import Mapping
from typing import Any

from loadtune.report.bottleneck import bottleneck_text
from loadtune.report.export import loader_code, step_code
from loadtune.report.forms.export_context import ExportContext
from loadtune.report.store import as_json
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import MISSING, percent_text, ratio_text


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
    values = context.loader_kwargs | context.recipe
    words = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
    return "".join(f"LOADTUNE_{name.upper()}={value}\n" for name, value in words.items())


def markdown(context: ExportContext) -> str:
    """A table and code for a pull request, a wiki or a job's summary."""
    config, result = context.config, context.result
    rows = [
        *((name, f"`{value}`") for name, value in context.loader_kwargs.items()),
        ("precision", PRECISION_TEXT[config.precision]),
        *_recipe_rows(context.recipe),
        ("throughput", f"**{context.throughput}**"),
        ("speed-up", _speedup(context)),
        *([] if context.efficiency is None else [("chosen for", f"**{context.efficiency}**")]),
        ("share of compute-only rate", percent_text(context.winner.compute_fraction)),
        # of the best at any batch size only
        ("bottleneck", bottleneck_text(result.bottleneck) if context.winner == result.best else MISSING),
    ]
    table = "".join(f"| {name} | {value} |\n" for name, value in rows)
    return (
        f"### {_escaped(context.workload)} on {_escaped(result.device.name)}\n\n"
        f"| | |\n|---|---|\n{table}\n"
        f"{_escaped(context.provenance)}\n\n"
        f"```python\n{loader_code(result, config)}\n{step_code(result, config)}```\n"
    )


def _recipe_rows(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """torch.compile only where it is used."""
    if not recipe:
        return []
    fused = "yes" if recipe["fused_optimizer"] else "no"
    compiled = [("torch.compile", "yes")] if recipe["compile"] else []
    return [("memory format", recipe["memory_format"]), ("fused optimizer", fused), *compiled]


def _speedup(context: ExportContext) -> str:
    winner = context.winner
    if winner.config == context.result.yours:
        return "none"
    if winner.speedup_low is None or winner.speedup_high is None:
        return MISSING if winner.speedup is None else f"{ratio_text(winner.speedup)}, too few runs for an interval"
    return f"{ratio_text(winner.speedup)} ({ratio_text(winner.speedup_low)} to {ratio_text(winner.speedup_high)})"


def _escaped(text: str) -> str:
    """Names may hold characters that are markup in Markdown."""
    return "".join(f"\\{char}" if char in "\\`*_|<>[]#" else char for char in " ".join(text.split()))
