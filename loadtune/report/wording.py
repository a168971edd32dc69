"""Records as short text: settings, limits, failures. In: a record. Out: a string."""

from collections import Counter
from collections.abc import Iterable, Mapping

from loadtune.records import (
    CeilingLimit,
    FailureKind,
    GpuFacts,
    GpuProcess,
    Objective,
    Precision,
    Recipe,
    RecipeChoice,
    Score,
    TrialConfig,
    TrialFailure,
    TuningResult,
    Winner,
)
from loadtune.units import bytes_text, counted, efficiency_text, rate_text

VISIBLE_BYTES = 100 * 2**20
"""What another process has to hold of a GPU to be worth a word: 0.07% of an H200, 1% of a GPU of 10 GiB. Desktops and
daemons that hold less stand on many machines."""

PRECISION_TEXT: Mapping[Precision, str] = {
    "fp32": "fp32 (no AMP)",
    "fp16": "fp16 (AMP)",
    "bf16": "bf16 (AMP)",
    "own": "as in your step",
}

LIMIT_TEXT: Mapping[CeilingLimit, str] = {
    "memory": "GPU memory",
    "failure": "an error at larger batches that is not out of memory",
    "dataset": "the length of an epoch",
    "fixed": "your loader, which makes batches of this size only",
    "cap": "--max-batch-size",
    "host_memory": "RAM: prefetched batches would not fit",
    "time": "the time of one step",
}

STAGE_TEXT: Mapping[str, str] = {
    "study": "search",
    "verify": "verify memory",
    "costs": "checkpoint",
}
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

_REMEDY_TEXT: Mapping[str, str] = {
    "cached": "samples in RAM",
    "compiled": "torch.compile",
    "start_method": "forkserver",
    "unordered": "in_order=False",
}
"""Remedies whose name is not what a user reads."""


def score_text(value: float | None, objective: Objective) -> str:
    """What a configuration is judged by: ``4,050/s``, ``7.40 samples/J``."""
    return rate_text(value) if objective == "samples-per-s" else efficiency_text(value)


def interval_text(score: Score) -> str:
    """``4,050/s ± 162/s``; the value alone where too few runs were made for an interval."""
    value = score_text(score.value, score.objective)
    return value if score.half_width is None else f"{value} ± {score_text(score.half_width, score.objective)}"


def limit_text(limit: CeilingLimit, device_kind: str | None) -> str:
    """`LIMIT_TEXT` for a kind of device, because a CPU's memory is the machine's. None: not known which."""
    if limit != "memory" or device_kind == "cuda":
        return LIMIT_TEXT[limit]
    return "memory" if device_kind is None else "RAM"


def settings_text(config: TrialConfig) -> str:
    """One line: ``batch 256, 16 workers, pinned, fp16, channels_last, fused optimizer, with uint8 transfer``."""
    return _with_remedies([*_searched_parts(config), *_recipe_parts(config.recipe)], config)


def searched_text(config: TrialConfig) -> str:
    """Without the recipe, which every trial of a precision shares: ``batch 256, 16 workers, pinned, fp16``."""
    return _with_remedies(_searched_parts(config), config)


def remedy_text(name: str) -> str:
    """A remedy in two words or three, by its name: ``uint8 transfer``."""
    return _REMEDY_TEXT.get(name, name.replace("_", " "))


def _with_remedies(parts: list[str], config: TrialConfig) -> str:
    """Remedies that only turn on a setting are named as that setting."""
    named = [words for name in config.remedies if (words := remedy_text(name)) not in parts]
    return ", ".join(parts) + (f", with {' and '.join(named)}" if named else "")


def _searched_parts(config: TrialConfig) -> list[str]:
    loader = config.loader
    parts = [
        f"batch {loader.batch_size}",
        counted(loader.num_workers, "worker"),
        "pinned" if loader.pin_memory else "not pinned",
        "your step's own precision" if config.precision == "own" else config.precision,
    ]
    if loader.num_workers and loader.prefetch_factor != 2:  # 2 is PyTorch's default
        parts.insert(2, f"prefetch_factor={loader.prefetch_factor}")
    parts += [] if loader.in_order else ["in_order=False"]
    parts += [] if loader.persistent_workers else ["persistent_workers=False"]
    return parts


def precision_text(precision: Precision) -> str:
    """``bf16``; of a training step of the user's own that it decides by itself."""
    return PRECISION_TEXT["own"] if precision == "own" else precision


def memory_format_text(recipe: Recipe) -> str:
    return PRECISION_TEXT["own"] if recipe.precision == "own" else recipe.memory_format


def recipe_text(recipe: Recipe) -> str:
    return "as in your step" if recipe.precision == "own" else ", ".join(_recipe_parts(recipe)) or "plain"


def precision_name(precision: Precision) -> str:
    """At the beginning of a line about this precision."""
    return "your step" if precision == "own" else precision


def recipe_line(choice: RecipeChoice) -> str:
    """``fp16: channels_last, of 3 recipes that were timed once each``: too little for a ratio."""
    parts = ", ".join(_recipe_parts(choice.chosen))
    if choice.chosen.precision == "own":
        return "Your training step decides precision, memory format, optimizer and torch.compile"
    if not parts:
        parts = "PyTorch's defaults"
    return f"{choice.chosen.precision}: {parts}, of {counted(len(choice.points), 'recipe')} that were timed once each"


def _recipe_parts(recipe: Recipe) -> list[str]:
    parts = ["channels_last"] if recipe.memory_format == "channels_last" else []
    parts += ["fused optimizer"] if recipe.fused_optimizer else []
    return [*parts, "torch.compile"] if recipe.compile else parts


def keep_text(result: TuningResult, winner: Winner) -> str:
    """``Keep your settings: …`` where the winner is the baseline. Empty: something is proven better."""
    if winner.config != result.yours:
        return ""
    what, where, there = "your settings", "", ""
    if {"batch_size", "num_workers", "pin_memory", "precision"} <= set(result.assumed):
        what = f"PyTorch's defaults, here with an assumed batch size of {winner.config.batch_size}"
    if result.best is None or result.best.config != winner.config:
        where, there = f" at batch size {winner.config.batch_size}", " there"
    better = "faster" if result.config.objective == "samples-per-s" else "more efficient"
    return f"Keep {what}{where}: nothing else that was tried{there} is proven {better}."


def failures_text(failures: Iterable[TrialFailure]) -> str:
    """``2 failed (out of memory 1, crashed 1)``."""
    kinds = Counter(FAILURE_TEXT[failure.kind] for failure in failures)
    if not kinds:
        return "0 failed"
    return f"{kinds.total()} failed ({', '.join(f'{kind} {count}' for kind, count in kinds.items())})"


def others_text(gpu: GpuFacts) -> tuple[str, ...]:
    """Who holds a visible part of a GPU, most first: ``python (pid 812), 12.3 GiB``. Empty where none can be named."""
    return tuple(_process_text(process) for process in gpu.processes if _is_visible(process, gpu.others_bytes))


def held_text(gpu: GpuFacts) -> str | None:
    """One line for `others_text`, or how much it is that the driver names no holder of. None: nothing worth a word."""
    return holders_text(others_text(gpu), gpu.others_bytes)


def holders_text(others: tuple[str, ...], others_bytes: int | None) -> str | None:
    """The same, where the processes are in words already."""
    if others:
        return f"held by {'; '.join(others)}"
    if (others_bytes or 0) <= VISIBLE_BYTES:
        return None
    return f"{bytes_text(others_bytes)} held by processes that the driver does not name"


def _is_visible(process: GpuProcess, others_bytes: int | None) -> bool:
    """Where the driver does not say what each holds, what they hold together decides."""
    held = others_bytes if process.used_bytes is None else process.used_bytes
    return (held or 0) > VISIBLE_BYTES


def _process_text(process: GpuProcess) -> str:
    name = f"pid {process.pid}" if process.name is None else f"{process.name} (pid {process.pid})"
    return name if process.used_bytes is None else f"{name}, {bytes_text(process.used_bytes)}"
