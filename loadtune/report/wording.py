"""Records in a few words: settings, limits, failures. In: a record. Out: a string, with no judgement in it."""

from collections import Counter
from collections.abc import Iterable, Mapping

from loadtune.records import Bound, CeilingLimit, Precision, Recipe, TrialConfig, TrialFailure

PRECISION_TEXT: Mapping[Precision, str] = {"fp32": "fp32 (no AMP)", "fp16": "fp16 (AMP)", "bf16": "bf16 (AMP)"}

LIMIT_TEXT: Mapping[CeilingLimit, str] = {
    "memory": "device memory",
    "dataset": "length of the dataset",
    "cap": "--max-batch-size",
    "host_memory": "RAM and /dev/shm for prefetched batches",
    "time": "one larger step takes too much of the time budget",
}

BOUND_TEXT: Mapping[Bound, str] = {
    "compute": "the device's own compute",
    "loader": "the loader",
    "transfer": "the way from host to device",
    "unclear": "something these figures do not show",
}


def settings_text(config: TrialConfig) -> str:
    """One line: ``batch 256, 16 workers, pinned, fp16, channels_last, fused optimizer``."""
    return ", ".join([searched_text(config), *_recipe_parts(config.recipe)])


def searched_text(config: TrialConfig) -> str:
    """Without the recipe, which every trial of a precision shares: ``batch 256, 16 workers, pinned, fp16``."""
    loader = config.loader
    parts = [
        f"batch {loader.batch_size}",
        f"{loader.num_workers} worker{'' if loader.num_workers == 1 else 's'}",
        "pinned" if loader.pin_memory else "not pinned",
        config.precision,
    ]
    if loader.num_workers and loader.prefetch_factor != 2:  # 2 is PyTorch's default
        parts.insert(2, f"prefetch {loader.prefetch_factor}")
    return ", ".join(parts)


def recipe_text(recipe: Recipe) -> str:
    return ", ".join(_recipe_parts(recipe)) or "plain"


def _recipe_parts(recipe: Recipe) -> list[str]:
    parts = ["channels_last"] if recipe.memory_format == "channels_last" else []
    return [*parts, "fused optimizer"] if recipe.fused_optimizer else parts


def failures_text(failures: Iterable[TrialFailure]) -> str:
    """``2 failed (oom 1, crash 1)``."""
    kinds = Counter(failure.kind for failure in failures)
    if not kinds:
        return "0 failed"
    return f"{kinds.total()} failed ({', '.join(f'{kind} {count}' for kind, count in kinds.items())})"
