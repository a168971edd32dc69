"""Options of the command line, parsed and checked. In: strings and a `TuneConfig`. Out: values, or a UsageError.

Every message names the option, what was found, what is allowed and what to do.
"""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TypeVar, cast, get_args

from loadtune.errors import UsageError
from loadtune.records.config import (
    DIMENSIONS,
    MEMORY_FORMATS,
    OPTIONAL_DIMENSIONS,
    PRECISIONS,
    PROBE_MODES,
    REMEDY_MODES,
    Fixed,
    OptimizerName,
    OptionalDimension,
    Precision,
    Setting,
    TuneConfig,
    WorkloadSpec,
    YourSettings,
    is_import_path,
)
from loadtune.units import bytes_text

_UNITS = {
    **dict.fromkeys(("", "B"), 1),
    **{unit: 1024**power for power, unit in enumerate(("KIB", "MIB", "GIB", "TIB"), 1)},
    **{unit: 1000**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), 1)},
}
_Word = TypeVar("_Word", bound=str)
_LEAST_BYTES = 1024**2
"""No training step needs less: a smaller size has lost its unit."""
LEAST_BUDGET_S = 5.0
"""Importing torch and building a small model takes 2 to 4 s."""
_LARGEST_SEED = 2**32 - 1  # NumPy's limit, which Optuna's samplers share


def precision_of(flag: str, word: str) -> Precision:
    """``off`` (no AMP) is fp32."""
    found = "fp32" if word.lower() == "off" else word.lower()
    if found not in PRECISIONS:
        raise UsageError(f"{flag} is {word!r}; it must be off (the same as fp32), fp16 or bf16.")
    return found


def precisions_of(words: list[str]) -> tuple[Precision, ...] | None:
    """``["off,bf16", "fp16"]`` in the order of PRECISIONS, each once. None: the option was not given."""
    if not words:
        return None
    named = {precision_of("--precision", part.strip()) for word in words for part in word.split(",")}
    return tuple(precision for precision in PRECISIONS if precision in named)


def one_of(flag: str, word: str, allowed: Sequence[_Word]) -> _Word:
    """The allowed word that the option names."""
    found = next((each for each in allowed if each == word), None)
    if found is None:
        raise UsageError(f"{flag} is {word!r}; it must be one of {', '.join(allowed)}.")
    return found


def tuned_of(words: list[str]) -> tuple[OptionalDimension, ...]:
    """``["in_order,prefetch_factor"]`` in the order of OPTIONAL_DIMENSIONS, each once."""
    named = [part.strip() for word in words for part in word.split(",")]
    for name in named:
        if name not in OPTIONAL_DIMENSIONS:
            always = f" {name} is always tuned; leave it out." if name in DIMENSIONS else ""
            raise UsageError(f"--tune is {name!r}; it must be one or more of {', '.join(OPTIONAL_DIMENSIONS)}.{always}")
    return tuple(name for name in OPTIONAL_DIMENSIONS if name in named)


def fixed_of(words: list[str]) -> tuple[Fixed, ...]:
    """``["num_workers=4", "pin_memory=true"]``, or joined by commas; each dimension once."""
    fixed: dict[str, Fixed] = {}
    for word in [part.strip() for each in words for part in each.split(",")]:
        name, _, value = (part.strip() for part in word.partition("="))
        dimension = next((dimension for dimension in DIMENSIONS if dimension == name), None)
        if dimension is None:
            raise UsageError(f"--fix is {word!r}; it must be name=value, where name is one of {', '.join(DIMENSIONS)}.")
        fixing = Fixed(name=dimension, value=_setting_of(name, value))
        if fixed.setdefault(name, fixing) != fixing:
            raise UsageError(f"--fix gives {name} twice, as {fixed[name].value} and {fixing.value}. Give it once.")
    return tuple(fixed.values())


_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LEAST = {"batch_size": 1, "num_workers": 0, "prefetch_factor": 1}


def _setting_of(name: str, word: str) -> Setting:
    """The value of a dimension that ``--fix`` was given."""
    if name == "precision":
        return precision_of("--fix precision", word)
    if name in _LEAST:
        allowed, value = (
            f"a whole number of at least {_LEAST[name]}",
            int(word) if word.isascii() and word.isdigit() else -1,
        )
        found: Setting | None = value if value >= _LEAST[name] else None
    elif name == "memory_format":
        allowed, found = " or ".join(MEMORY_FORMATS), word if word in MEMORY_FORMATS else None
    else:
        allowed, found = "true or false", _BOOLEANS.get(word.lower())
    if found is None:
        raise UsageError(f"--fix {name} is {word!r}; the value must be {allowed}.")
    return found


def memory_of(flag: str, word: str) -> int:
    """``24GiB``, ``80 GB`` or bytes as a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", word.strip())
    factor = _UNITS.get(found[2].upper()) if found else None
    if found is None or factor is None or not (count := int(float(found[1]) * factor)):
        raise UsageError(f"{flag} is {word!r}; it must be a size above 0 with its unit, such as 24GiB, 80GB or 512MiB.")
    if count < _LEAST_BYTES:
        raise UsageError(
            f"{flag} is {word!r}, which is {bytes_text(count)}; it must be 1 MiB or more. Give the unit, as in 24GiB"
            " or 80GB; without one it is a number of bytes."
        )
    return count


def share_of(flag: str, word: str) -> float:
    """``5%`` or ``0.05``: above 0 and below 1."""
    found = re.fullmatch(r"(\d*\.?\d+)\s*(%?)", word.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < share < 1:
        raise UsageError(f"{flag} is {word!r}; it must be above 0% and below 100%, written as 5% or 0.05.")
    return share


def resumed_config(kept: TuneConfig, asked: TuneConfig, given: Collection[str], num_run: int) -> TuneConfig:
    """The config of a run that goes on: its own, but for the options `given`; ``--trials`` are more than `num_run`."""
    config = _overlaid(
        kept, asked, given, precisions="precision", time_budget_s="time_budget", max_gpu_memory_bytes="max_gpu_memory"
    )
    return replace(
        config,
        workload=_overlaid(kept.workload, asked.workload, given),
        yours=_overlaid(kept.yours, asked.yours, given, precision="amp"),
        num_trials=num_run + asked.num_trials if "trials" in given else kept.num_trials,
    )


_Record = TypeVar("_Record", TuneConfig, WorkloadSpec, YourSettings)


def _overlaid(kept: _Record, asked: _Record, given: Collection[str], **option_of: str) -> _Record:
    """`kept` with the fields of `asked` whose option was given, which mostly has the field's name."""
    named = [field.name for field in fields(kept) if option_of.get(field.name, field.name) in given]
    return replace(kept, **{name: getattr(asked, name) for name in named})


def check(config: TuneConfig) -> TuneConfig:
    """The same config, every number of it within its range."""
    check_seconds("--time-budget", config.time_budget_s)
    if config.time_budget_s < LEAST_BUDGET_S:
        raise UsageError(
            f"--time-budget is {config.time_budget_s:g}; it must be at least {LEAST_BUDGET_S:g} seconds: starting the"
            " training process alone takes several seconds. Most workloads need 60 or more for an answer. Raise it, or"
            " leave --time-budget out."
        )
    one_of("--probe", config.probe, PROBE_MODES)
    one_of("--remedies", config.remedies, REMEDY_MODES)
    check_at_least("--trials", config.num_trials, 1)
    check_at_least("--batch-size", config.yours.batch_size, 1)
    check_at_least("--num-workers", config.yours.num_workers, 0)
    check_at_least("--max-batch-size", config.max_batch_size, 1)
    check_at_least("--max-workers", config.max_workers, 0)
    check_at_least("--ranks-per-node", config.ranks_per_node, 1)
    check_at_least("--image-size", config.workload.image_size, 1)
    check_at_least("--num-classes", config.workload.num_classes, 1)
    if not 0 <= config.seed <= _LARGEST_SEED:
        raise UsageError(
            f"--seed is {config.seed}; it must be from 0 to {_LARGEST_SEED}. Choose one, or leave --seed out."
        )
    check_job(config.workload)
    _check_step(config)
    _check_fixed(config)
    return config


_PYTHON_NAMES = {
    "--time-budget": "time_budget_s",
    "--trials": "num_trials",
    "--amp": "YourSettings(precision=...)",
    **{f"--{name}": f"YourSettings({name.replace('-', '_')}=...)" for name in ("batch-size", "num-workers")},
    **{
        f"--{name}": f"WorkloadSpec({name.replace('-', '_')}=...)"
        for name in ("image-size", "num-classes", "batch-dim", "accumulate")
    },
    "--precision": "TuneConfig(precisions=...)",
    "--fix": "TuneConfig(fix=...)",
    "--tune": "TuneConfig(tune=...)",
    "--step": "step=...",
}
"""An option that is not named here has its own name, with underscores."""


@contextmanager
def python_names() -> Iterator[None]:
    """Within it a UsageError names what a caller in Python passes, in place of the command line's options."""
    try:
        yield
    except UsageError as error:
        text = re.sub(r"--[a-z-]+", _python_name, str(error))
        raise UsageError(text) from None


def _python_name(option: re.Match[str]) -> str:
    return _PYTHON_NAMES.get(option[0], option[0].removeprefix("--").replace("-", "_"))


def whole(value: object) -> int | None:
    """The number, NumPy's too. None: it is none; True and False are none either."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(cast(int, value))
    except TypeError:
        return None


def check_at_least(flag: str, value: object, least: int) -> int | None:
    """The same number. Raises UsageError unless it is None, or a whole number of at least this."""
    number = whole(value)
    if value is not None and (number is None or number < least):
        raise UsageError(
            f"{flag} is {value!r}; it must be a whole number of at least {least}. Raise it, or leave {flag} out."
        )
    return number


def check_seconds(flag: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"{flag} is {value:g}; it must be a number of seconds above 0. Give at least 60, or leave {flag} out."
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_job(spec: WorkloadSpec) -> None:
    """Parts of a job that rule each other out, and what is no import path."""
    check_at_least("--accumulate", spec.accumulate, 1)
    check_at_least("--batch-dim", spec.batch_dim, 0)
    usual = WorkloadSpec()
    changed = [field.name for field in fields(spec) if getattr(spec, field.name) != getattr(usual, field.name)]
    check_together(changed)
    for name, example in _EXAMPLES.items():
        value = getattr(spec, name)
        if value is None or name in spec.objects or not isinstance(value, str) or is_import_path(value):
            continue
        if name != "optimizer" or value not in get_args(OptimizerName):
            names = "sgd (with momentum 0.9), adamw or " if name == "optimizer" else ""
            raise UsageError(
                f"{_option(name)} is {value!r}; it must be {names}an import path, pkg.mod:name or FILE.py:name, such as"
                f" train.py:{example}."
            )


_EXAMPLES = {
    "loader": "make_loader",
    "collate": "collate",
    "loss": "loss",
    "compute_loss": "compute_loss",
    "step": "make_step",
    "optimizer": "make_optimizer",
}


_OF_A_RECIPE = ("amp", "precision", "channels_last", "fused", "compile")
_RULED_OUT = (
    ("loader", ("dataset", "data_root", "collate"), "the loader already has its dataset and collate function"),
    (
        "step",
        ("model", "loss", "compute_loss", "optimizer", "accumulate", *_OF_A_RECIPE),
        "the step already contains model, loss, optimizer and precision",
    ),
    ("compute_loss", ("loss",), "compute_loss takes the place of a loss"),
)


def check_together(given: Collection[str], written: Callable[[str], str] = _option) -> None:
    """Refuse parts of a job that rule each other out. ``given``: their names; ``written``: as the user writes them."""
    for part, others, why in _RULED_OUT:
        if part in given:
            _refuse_beside(written(part), [written(other) for other in others if other in given], why)


def _refuse_beside(part: str, found: list[str], why: str) -> None:
    if found:
        names = ", ".join(found)
        raise UsageError(f"{part} is given together with {names}, but {why}. Leave {names} out, or leave {part} out.")


_OF_THE_STEP = ("precision", "memory_format", "compile")


def _check_step(config: TuneConfig) -> None:
    """A training step of the user's own decides the recipe."""
    if config.workload.step is None:
        return
    found = ["--amp"] if config.yours.precision not in (None, "own") else []
    found += [] if config.precisions is None else ["--precision"]
    found += [f"--fix {fixed.name}" for fixed in config.fix if fixed.name in _OF_THE_STEP]
    found += [f"--tune {name}" for name in config.tune if name in _OF_THE_STEP]
    _refuse_beside("--step", found, "the step already contains model, loss, optimizer and precision")


def _check_fixed(config: TuneConfig) -> None:
    """A fixed setting, and the baseline's batch size, must be neither tuned nor excluded by another option."""
    for fixed in config.fix:
        if fixed.name in config.tune:
            raise UsageError(f"{fixed.name} is given to both --tune and --fix. Leave one of them out.")
    for given, value, flag, most in (
        ("--batch-size", config.yours.batch_size, "--max-batch-size", config.max_batch_size),
        ("--fix batch_size", config.fixed("batch_size"), "--max-batch-size", config.max_batch_size),
        ("--fix num_workers", config.fixed("num_workers"), "--max-workers", config.max_workers),
    ):
        if most is not None and value is not None and int(value) > most:
            raise UsageError(f"{given} is {value}, more than {flag} {most}. Raise {flag}, or leave one of them out.")
    precision = config.fixed("precision")
    if precision is not None and config.precisions is not None and precision not in config.precisions:
        raise UsageError(f"--fix precision is {precision}, which --precision does not include. Leave one of them out.")
