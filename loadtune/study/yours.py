"""The user's own configuration: what was given, what is assumed in its place, and what of it this device cannot do."""

from loadtune.errors import UsageError
from loadtune.records import LoaderConfig, Recipe, TrialConfig, TuneConfig, WorkloadFacts, YourSettings
from loadtune.units import counted

ASSUMED_BATCH = 64
"""What scripts use that never thought about it."""


def assumed_settings(yours: YourSettings) -> tuple[str, ...]:
    """Names of the settings that were not given and have a meaning."""
    names = ["batch_size", "num_workers", "pin_memory", "precision"]
    names += ["persistent_workers"] if yours.num_workers else []
    return tuple(name for name in names if getattr(yours, name) is None)


def your_config(yours: YourSettings, largest: int, *, can_pin: bool = True) -> TrialConfig:
    """The configuration to compare with: given settings, PyTorch's defaults for the rest, and the plain recipe.

    `largest` is the largest batch there is; an assumed batch size gives way to it, a given one does not. Without
    `can_pin` nothing is pinned.
    """
    loader = LoaderConfig(
        batch_size=yours.batch_size or min(ASSUMED_BATCH, largest),
        num_workers=yours.num_workers or 0,
        pin_memory=can_pin and bool(yours.pin_memory),
        persistent_workers=bool(yours.persistent_workers) or not yours.num_workers,  # without meaning at 0
    )
    return TrialConfig(loader=loader, recipe=Recipe(precision=yours.precision or "fp32"))


def check_against_facts(config: TuneConfig, facts: WorkloadFacts, device_kind: str) -> None:
    """Raise UsageError for a request that this dataset, model or device cannot meet."""
    _check_smallest(config, facts)
    _check_fixed(config, facts, device_kind)
    for found, batch_size in _batch_sizes(config).items():
        if batch_size is not None and batch_size > facts.dataset_length and found != "--max-batch-size":
            samples = counted(facts.dataset_length, "sample")
            raise UsageError(
                f"{found} is {batch_size}, but the dataset has only {samples}. It must be from 1 to "
                f"{facts.dataset_length:,}."
            )
    for precision in (*(config.considered or ()), config.yours.precision or "fp32"):
        if precision not in facts.precisions:
            raise UsageError(
                f"{precision} is not available on {facts.device_name}. Available: {', '.join(facts.precisions)}. "
                "Choose one of them with --precision, --fix precision=… or --amp."
            )


def _check_fixed(config: TuneConfig, facts: WorkloadFacts, device_kind: str) -> None:
    if config.fixed("pin_memory") and device_kind != "cuda":
        raise UsageError(
            "--fix pin_memory=true has no effect without a GPU. Leave it out, or choose a GPU with --device."
        )
    if config.max_gpu_memory_bytes is not None and device_kind != "cuda":
        raise UsageError(
            "--max-gpu-memory is for a GPU, but this run is on the CPU. Leave it out, or choose a GPU with --device."
        )
    wanted = "memory_format" in config.tune or config.fixed("memory_format") == "channels_last"
    if wanted and not facts.takes_channels_last:
        shape = "×".join(map(str, facts.input_shape))
        raise UsageError(
            f"channels_last needs samples with three or four dimensions; a sample of this dataset is {shape}. Leave "
            "memory_format out of --tune and --fix."
        )


def _batch_sizes(config: TuneConfig) -> dict[str, int | None]:
    """Those that the options name, by option."""
    fixed = config.fixed("batch_size")
    return {
        "--batch-size": config.yours.batch_size,
        "--max-batch-size": config.max_batch_size,
        "--fix batch_size": None if fixed is None else int(fixed),
    }


def _check_smallest(config: TuneConfig, facts: WorkloadFacts) -> None:
    least, length = facts.min_batch_size, facts.dataset_length
    allowed = {
        **{f"{option} {size}": size for option, size in _batch_sizes(config).items()},
        f"the dataset has {counted(length, 'sample')}": length,
    }
    for found, batch_size in allowed.items():
        if batch_size is not None and batch_size < least:
            raise UsageError(
                f"{found}, but this model needs at least {least} samples in a batch, as batch normalization does. "
                f"Allow {least} or more, or use another model."
            )
