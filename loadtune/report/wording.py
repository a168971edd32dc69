"""Names and figures of a result in a few words: settings, recipes, limits, failures, gains with their intervals."""

from collections.abc import Mapping, Sequence

from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.measurement import FailureKind, RecipeChoice, TrialFailure
from loadtune.records.memory import LIMIT_TEXT, CeilingLimit
from loadtune.records.result import Finalist, Resource
from loadtune.statistics.interval import Interval
from loadtune.units import counted, number_text, rate_text, ratio_text

PRECISION_TEXT: Mapping[Precision, str] = {
    "fp32": "fp32 (no AMP)",
    "fp16": "fp16 (AMP)",
    "bf16": "bf16 (AMP)",
    "own": "as in your script",
}

RESOURCE_TEXT: Mapping[Resource, str] = {
    "workers": "the worker processes",
    "cores": "the CPU cores",
    "pinning": "the pinning thread",
    "main": "the training process",
    "device": "the GPU",
}

STAGE_TEXT: Mapping[str, str] = {"study": "search", "verify": "verify memory"}
"""Stages whose name in the result is not what a user reads."""

FAILURE_TEXT: Mapping[FailureKind, str] = {
    "oom": "out of memory",
    "host_oom": "out of RAM",
    "shm": "/dev/shm full",
    "crash": "crashed",
    "hang": "hung",
    "user_error": "raised",
    "unsupported": "unsupported",
    "non_finite_loss": "NaN/inf loss",
    "too_slow": "too slow",
}
"""Of a table's width: 13 characters at most."""


def interval_text(found: Interval) -> str:
    """``4,050 ± 162``; ``345 (0–745)`` where the interval includes 0; the value alone where there is none."""
    value, half = number_text(found.value), found.half_width
    if half is None:
        return value
    return f"{value} ± {number_text(half)}" if half < found.value else f"{value} (0–{number_text(found.high)})"


def gain_text(gain: Interval, level: str = "") -> str:
    """``1.27× (1.22–1.32)``; with the level of the interval ``1.27× (99%: 1.22–1.32)``."""
    known = gain.low is not None and gain.high is not None
    interval = f"{level}{number_text(gain.low)}–{number_text(gain.high)}" if known else "no interval"
    return f"{ratio_text(gain.value)} ({interval})"


def limit_text(limit: CeilingLimit, device_kind: str) -> str:
    """With the name of the option, and of the memory: a CPU's is the machine's."""
    named = {"memory": "GPU memory" if device_kind == "cuda" else "RAM", "cap": "--max-batch-size"}
    return named.get(limit, LIMIT_TEXT[limit])


def settings_text(config: TrialConfig, *, with_recipe: bool = True) -> str:
    """One line: ``batch 256, 16 workers, pinned, fp16, channels_last, fused optimizer, with uint8 transfer``.

    Without the recipe, which every trial of a precision shares, it ends with the precision.
    """
    loader = config.loader
    parts = [
        f"batch {loader.batch_size}",
        counted(loader.num_workers, "worker"),
        *([f"prefetch_factor={loader.prefetch_factor}"] if loader.num_workers and loader.prefetch_factor != 2 else []),
        "pinned" if loader.pin_memory else "not pinned",
        "your script's own precision" if config.precision == "own" else config.precision,
        *([] if loader.in_order else ["in_order=False"]),
        *([] if loader.persistent_workers else ["persistent_workers=False"]),
        *(_recipe_parts(config.recipe) if with_recipe else []),
    ]
    # Remedies that only turn on a setting are named as that setting.
    named = [words for name in config.remedies if (words := remedy_text(name)) not in parts]
    return ", ".join(parts) + (f", with {' and '.join(named)}" if named else "")


def _recipe_parts(recipe: Recipe) -> list[str]:
    parts = {
        "channels_last": recipe.memory_format == "channels_last",
        "fused optimizer": recipe.fused_optimizer,
    }
    return [name for name, used in parts.items() if used]


def remedy_text(name: str) -> str:
    """A remedy in two words or three, by its name: ``uint8 transfer``."""
    return name.replace("_", " ")


def recipe_text(recipe: Recipe) -> str:
    return (
        PRECISION_TEXT["own"] if recipe.precision == "own" else ", ".join(_recipe_parts(recipe)) or "PyTorch's defaults"
    )


def precision_name(precision: Precision) -> str:
    """At the beginning of a line about this precision."""
    return "your script" if precision == "own" else precision


def recipe_line(choice: RecipeChoice) -> str:
    """``fp16: channels_last, chosen from 3 variants, each timed once``: too little for a ratio."""
    timed = f"chosen from {len(choice.points)} variants, each timed once" if len(choice.points) > 1 else "timed once"
    return f"{choice.chosen.precision}: {recipe_text(choice.chosen)}, {timed}"


QUIETER = "Run again on a quieter machine."


def non_finite_text(config: TrialConfig, failure: TrialFailure) -> str:
    what = f"ith {settings_text(config)} {failure.message.rstrip('.')}."
    if config.precision == "fp32":
        return (
            f"W{what} No precision has a wider range than fp32, so the dataset, the model or the loss gives values "
            "that are not finite. Check that every sample is finite, and that model and loss give finite values for it."
        )
    return (
        f"{config.precision} is not recommended: w{what} Leave {config.precision} out with --precision, or change the "
        "model so that it trains in it."
    )


def failures_text(num_measured: int, failures: Sequence[TrialFailure]) -> str:
    """As a clause: ``1 of its 4 runs failed (crash: it died)``."""
    first = failures[0]
    num_runs = counted(num_measured + len(failures), "run")
    return f"{len(failures)} of its {num_runs} failed ({first.kind}: {first.message.rstrip('.')})"


def unconfirmed_text(finalist: Finalist) -> str | None:
    """Why it is never the answer, with figures and what to do, after its name. None: nothing rules it out."""
    why = finalist.unconfirmed
    if why is None:
        return None
    if why.reason == "non_finite_loss":
        return non_finite_text(why.config, why.failures[0])
    if why.reason == "failed":
        cause = "Remove the cause and run again: training for hours would meet it too."
        return f"{failures_text(len(finalist.runs), why.failures)}. {cause}"
    return (
        f"it reads {rate_text(finalist.samples_per_s)}, more than its compute-only rate of "
        f"{rate_text(why.compute_per_s)}: one of the two rates is wrong, because no loader makes a step faster. "
        f"{QUIETER}"
    )
