"""What the command line was given, checked. In: words and a `TuneConfig`. Out: the same, or a UsageError.

Every message names the flag, what was found, what is allowed and what to do. Apart from `cli`, because it is pure.
"""

import math
import re
from typing import cast, get_args

from loadtune.errors import UsageError
from loadtune.records import PRECISIONS, OptimizerName, Precision, TuneConfig, WorkloadSpec, YourSettings

_UNITS = {
    **dict.fromkeys(("", "B"), 1),
    **{unit: 1024**power for power, unit in enumerate(("KIB", "MIB", "GIB", "TIB"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), 1)},
}
_LARGEST_SEED = 2**32 - 1  # NumPy's limit, which Optuna's samplers share


def precision_of(flag: str, word: str) -> Precision:
    """``off`` is what people call fp32 when they speak of AMP."""
    found = "fp32" if word.lower() == "off" else word.lower()
    if found not in PRECISIONS:
        raise UsageError(f"{flag} is {word!r}; it can be off (the same as fp32), fp16 or bf16. Name one of these.")
    return found


def precisions_of(words: list[str]) -> tuple[Precision, ...] | None:
    """``["off,bf16", "fp16"]`` in the order of PRECISIONS, each once. None: the option was not given."""
    if not words:
        return None
    named = {precision_of("--precision", part.strip()) for word in words for part in word.split(",")}
    return tuple(precision for precision in PRECISIONS if precision in named)


def optimizer_of(word: str) -> OptimizerName:
    if word not in get_args(OptimizerName):
        raise UsageError(f"--optimizer is {word!r}; it can be sgd (with momentum 0.9) or adamw. Name one of these.")
    return cast(OptimizerName, word)


def memory_of(flag: str, word: str) -> int:
    """``24GiB``, ``80 GB`` or bytes as a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", word.strip())
    factor = _UNITS.get(found[2].upper()) if found else None
    if found is None or factor is None or not (count := int(float(found[1]) * factor)):
        raise UsageError(
            f"{flag} is {word!r}; it can be a number above 0 with a unit such as 24GiB, 80GB or 512MiB, or of bytes."
            " Write it so."
        )
    return count


def share_of(flag: str, word: str) -> float:
    """``5%`` or ``0.05``: above 0 and below 1."""
    found = re.fullmatch(r"(\d*\.?\d+)\s*(%?)", word.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{flag} is {word!r}; it can be above 0% and below 100%, as 5% or 0.05. Write it so.")
    return share


def workload_of(
    dataset: str,
    model: str,
    data_root: str | None,
    image_size: int | None,
    num_classes: int | None,
    optimizer: str,
    seed: int,
) -> WorkloadSpec:
    """What to train, from the options that name it."""
    return WorkloadSpec(
        dataset=dataset,
        model=model,
        data_root=data_root,
        image_size=image_size,
        num_classes=num_classes,
        optimizer=optimizer_of(optimizer),
        seed=seed,
    )


def yours_of(batch_size: int | None, num_workers: int | None, pin_memory: bool | None, amp: str | None) -> YourSettings:
    """The user's own configuration, as far as it was given."""
    return YourSettings(
        batch_size=batch_size,
        num_workers=num_workers,
        pin_memory=pin_memory,
        precision=None if amp is None else precision_of("--amp", amp),
    )


def check(config: TuneConfig) -> TuneConfig:
    """The same config, every number of it within its range."""
    check_seconds("--time-budget", config.time_budget_s)
    check_at_least("--trials", config.num_trials, 1)
    check_at_least("--batch-size", config.yours.batch_size, 1)
    check_at_least("--num-workers", config.yours.num_workers, 0)
    check_at_least("--max-batch-size", config.max_batch_size, 1)
    check_at_least("--max-workers", config.max_workers, 0)
    check_at_least("--image-size", config.workload.image_size, 1)
    check_at_least("--num-classes", config.workload.num_classes, 1)
    _check_seed(config.seed)
    _check_batches(config)
    return config


def check_at_least(flag: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(
            f"{flag} is {value}; it must be a whole number of at least {least}. Raise it, or leave {flag} out."
        )


def check_seconds(flag: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"{flag} is {value:g}; it must be a number of seconds above 0. Give a minute at least for an answer"
            f" worth having, or leave {flag} out."
        )


def _check_seed(value: int) -> None:
    if not 0 <= value <= _LARGEST_SEED:
        raise UsageError(f"--seed is {value}; it must be from 0 to {_LARGEST_SEED}. Choose one, or leave --seed out.")


def _check_batches(config: TuneConfig) -> None:
    yours, largest = config.yours.batch_size, config.max_batch_size
    if yours is not None and largest is not None and yours > largest:
        raise UsageError(
            f"--batch-size is {yours}, above --max-batch-size {largest}; your own batch size must be among those"
            " considered. Raise --max-batch-size, or leave one of them out."
        )
