"""What a user gives. The settings of a run: parsed, checked and put into a `TuneConfig`. Their table is the fields of
`WorkloadSpec`, `YourSettings` and `TuneConfig` that say how they are given. Within `python_names` messages name the
keyword. And a training job as objects in Python: checked, named and packed for the training process.
"""

import math
import operator
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from loadtune.errors import LoadtuneError, UsageError, one_of
from loadtune.records.config import (
    DIMENSIONS,
    PANELS,
    PRECISIONS,
    Fixed,
    LiveObjects,
    MemoryFormat,
    OptimizerName,
    Panel,
    Precision,
    Setting,
    TuneConfig,
    WorkloadPart,
    WorkloadSpec,
    YourSettings,
    is_import_path,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

_UNITS = {"MIB": 1024**2, "GIB": 1024**3, "TIB": 1024**4, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting: how it is given, and the field that holds it."""

    owner: type
    """The record that holds it."""
    name: str
    """Of the field, and of the keyword of `tune`."""
    kind: type
    """Of the value: int, float, bool, tuple, or str."""
    usual: Any
    panel: Panel
    """Where help and docs show it."""
    help: str
    """Meaning, unit and range, in a sentence or two."""
    flags: tuple[str, ...] = ()
    """On the command line. Empty: the field's name with dashes, without its unit."""
    value: str | None = None
    """What stands for its value in help. None: N for numbers, else NAME."""
    default: str | None = None
    """In words. None: the field's default says it."""
    allowed: tuple[str, ...] = ()
    """Words that it takes. Empty: any."""
    least: float | None = None
    most: float | None = None

    @property
    def flag(self) -> str:
        """As messages name it."""
        without_unit = self.name.removesuffix("_s").removesuffix("_bytes")
        return self.flags[-1] if self.flags else f"--{without_unit.replace('_', '-')}"

    def of(self, config: TuneConfig) -> Any:
        part = {WorkloadSpec: config.workload, YourSettings: config.yours}.get(self.owner, config)
        return getattr(part, self.name)


def _kind(annotation: Any) -> type:
    inner = next((each for each in get_args(annotation) if type(None) in get_args(annotation)), annotation)
    found = get_origin(inner) or inner
    return found if found in (int, float, bool, tuple) else str


_ROWS = [
    Row(owner=owner, name=field.name, kind=_kind(field.type), usual=field.default, **field.metadata)
    for owner in (WorkloadSpec, YourSettings, TuneConfig)
    for field in fields(owner)
    if field.metadata
]
TABLE = tuple(sorted(_ROWS, key=lambda row: PANELS.index(row.panel)))
FLAGS = {row.name: row.flag for row in TABLE}


# From the words of a command line


def parsed(row: Row, words: Any) -> Any:
    if row.name == "fix":
        return fixed_of(words)
    if row.name == "max_gpu_memory_bytes":
        return memory_of(row.flag, words)
    if row.kind is tuple:
        named = {one_of(row.flag, part.strip().lower(), row.allowed) for each in words for part in each.split(",")}
        return tuple(word for word in row.allowed if word in named)
    if row.kind in (int, float):
        return number_of(row.flag, row.kind, words, row.least, row.most)
    return one_of(row.flag, words.lower(), row.allowed) if row.allowed else words


def number_of(flag: str, kind: type, word: str, least: float | None = None, most: float | None = None) -> Any:
    with suppress(ValueError):
        return checked(flag, kind, kind(word), least, most)
    return checked(flag, kind, word, least, most)


def fixed_of(words: list[str]) -> tuple[Fixed, ...]:
    """``["num_workers=4", "pin_memory=true"]``, or joined by commas."""
    fixed: dict[str, Fixed] = {}
    for word in [part.strip() for each in words for part in each.split(",")]:
        name, equals, value = (part.strip() for part in word.partition("="))
        dimension = next((dimension for dimension in DIMENSIONS if dimension == name), None)
        if dimension is None or not equals:
            raise UsageError(
                f"--fix is {word!r}; it must be name=value, such as num_workers=4, where name is one of "
                f"{', '.join(DIMENSIONS)}."
            )
        fixed[name] = Fixed(name=dimension, value=_setting_of(name, value))
    return tuple(fixed.values())


_LEAST = {"batch_size": 1, "num_workers": 0, "prefetch_factor": 1}
_WORDS: dict[str, tuple[str, ...]] = {"precision": PRECISIONS, "memory_format": get_args(MemoryFormat)}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _setting_of(name: str, word: str) -> Setting:
    flag = f"--fix {name}"
    if name in _LEAST:
        return cast(int, number_of(flag, int, word, _LEAST[name]))
    if name in _WORDS:
        return one_of(flag, word.lower(), _WORDS[name])
    return _BOOLEANS[one_of(flag, word.lower(), tuple(_BOOLEANS))]


def memory_of(flag: str, word: str) -> int:
    """``24GiB`` or ``80 GB``."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*([A-Za-z]+)", word.strip())
    count = int(float(found[1]) * _UNITS.get(found[2].upper(), 0)) if found else 0
    if count < 1024**2:
        raise UsageError(
            f"{flag} is {word!r}; it must be a size of 1 MiB or more with its unit, such as 24GiB, 80GB or 512MiB."
        )
    return count


# Into a config


def with_settings(config: TuneConfig, given: Mapping[str, Any]) -> TuneConfig:
    """The config with these settings, which have the names of the table."""

    def of(owner: type) -> dict[str, Any]:
        return {row.name: as_given(row, given[row.name]) for row in TABLE if row.owner is owner and row.name in given}

    def as_given(row: Row, value: Any) -> Any:
        if row.kind is tuple and isinstance(value, str):  # one word, as on the command line
            return parsed(row, [value])
        return tuple(value) if isinstance(value, list) else value

    seed = {"seed": given["seed"]} if "seed" in given else {}  # of the search, and of the data
    workload = replace(config.workload, **of(WorkloadSpec), **seed)
    return replace(config, workload=workload, yours=replace(config.yours, **of(YourSettings)), **of(TuneConfig))


def with_command(config: TuneConfig, words: Sequence[str]) -> TuneConfig:
    """The config whose job is this command. Raises UsageError where it cannot be started."""
    example = "loadtune run -- python train.py"
    if not words:
        raise UsageError(f"the command is empty. Give the one that starts your training, as in: {example}")
    if os.environ.get("LOADTUNE_TUNING"):
        raise UsageError(
            "this script is being tuned, and it starts loadtune again. Start loadtune from outside of the script."
        )
    if shutil.which(words[0]) is None:
        hint = f"loadtune run -- python {words[0]}" if words[0].endswith(".py") else example
        raise UsageError(f"{words[0]} is no program that can be started. Give one and its arguments, as in: {hint}")
    return replace(config, workload=replace(config.workload, command=tuple(words)))


def check(config: TuneConfig, given: Collection[str] = ()) -> TuneConfig:
    """The same config, every value of it allowed, alone and beside the others. Raises UsageError.

    ``given``: names of settings that were given, also where they have the default's value.
    """
    for row in TABLE:
        value, bounds = row.of(config), (row.least, row.most)
        if value is None or value == "own":  # the precision of a script
            continue
        for word in (value if row.kind is tuple else (value,)) if row.allowed else ():
            one_of(row.flag, word, row.allowed)
        if row.kind is bool and not isinstance(value, bool):
            raise UsageError(f"{row.flag} is {value!r}; it must be True or False.")
        if row.kind in (int, float):
            checked(row.flag, row.kind, value, *bounds)
    for name in ("loader", "collate", "loss", "optimizer"):
        value = getattr(config.workload, name)
        known = get_args(OptimizerName) if name == "optimizer" else (None,)
        if value in known or name in config.workload.objects or is_import_path(value):
            continue
        names = "sgd (with momentum 0.9), adamw or " if name == "optimizer" else ""
        raise UsageError(f"{FLAGS[name]} is {value!r}; it must be {names}an import path, pkg.mod:name or FILE.py:name.")
    _check_together(config, given)
    return config


def whole(value: object) -> int | None:
    """The number, NumPy's too. None: it is none; True and False are none either."""
    try:
        return None if isinstance(value, bool) else operator.index(cast(int, value))
    except TypeError:
        return None


def checked(flag: str, kind: type, value: object, least: float | None, most: float | None = None) -> Any:
    """The same number, of this kind and within these bounds. Raises UsageError."""
    number = whole(value) if kind is int else value if isinstance(value, int | float) and math.isfinite(value) else None
    if number is not None and (least is None or number >= least) and (most is None or number <= most):
        return number
    allowed = "a whole number" if kind is int else "a number of seconds"
    if most is not None:
        allowed += f" from {least} to {most}"
    elif least is not None:
        allowed += f" of at least {least:g}"
    raise UsageError(f"{flag} is {value!r}; it must be {allowed}. Correct it, or leave {flag} out.")


_IN_A_SCRIPT = (
    *("loader", "dataset", "model", "loss", "optimizer"),
    *("collate", "data_root", "image_size", "num_classes", "accumulate"),
)
_RULED_OUT = (
    ("command", _IN_A_SCRIPT, "the script already has its data, model and training step"),
    ("command", ("remedies",), "a script is tuned with its own code"),
    ("loader", ("dataset", "data_root", "collate"), "the loader already has its dataset and collate function"),
)


def _check_together(config: TuneConfig, given: Collection[str]) -> None:
    found = {row.name: row.flag for row in TABLE if row.name in given or row.of(config) not in (row.usual, "own")}
    found |= {word: word for word in (f"--fix {fixed.name}" for fixed in config.fix)}
    found |= {"command": "the command"} if config.workload.command else {}
    for part, others, why in _RULED_OUT:
        beside = ", ".join(found[other] for other in others if other in found)
        if part in found and beside:
            part = found[part]
            raise UsageError(
                f"{part} is given together with {beside}, but {why}. Leave {beside} out, or leave {part} out."
            )
    for named, value, flag, most in (
        ("--batch-size", config.yours.batch_size, "--max-batch-size", config.max_batch_size),
        ("--fix batch_size", config.fixed("batch_size"), "--max-batch-size", config.max_batch_size),
        ("--fix num_workers", config.fixed("num_workers"), "--max-workers", config.max_workers),
    ):
        if most is not None and value is not None and int(value) > most:
            raise UsageError(f"{named} is {value}, more than {flag} {most}. Raise {flag}, or leave one of them out.")
    precision = config.fixed("precision")
    if precision is not None and config.precisions is not None and precision not in config.precisions:
        raise UsageError(f"--fix precision is {precision}, which --precision does not include. Leave one of them out.")


# In Python


_NAMED = re.compile(rf"({'|'.join(FLAGS.values())})(?![a-z-])( FILE\.py:(?=\w))?")


def in_python(text: str) -> str:
    """With the keywords of `tune` in place of the command line's options."""
    names = {flag: name for name, flag in FLAGS.items()}
    return _NAMED.sub(lambda found: names[found[1]] + ("=" if found[2] else ""), text)


@contextmanager
def python_names() -> Iterator[None]:
    """Within it an error names the keywords of Python."""
    try:
        yield
    except LoadtuneError as error:
        error.args = (in_python(str(error)),)
        raise


# A job of objects

_TRAINING_MAIN = "loadtune.training.__main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train: the arguments of `tune`, as objects, or by name. None: not given."""

    loader: "DataLoader[Any] | Callable[[], DataLoader[Any]] | str | None" = None
    """A DataLoader, or a function without arguments that returns one. Its settings are the baseline."""
    dataset: "Dataset[Any] | Callable[[], Dataset[Any]] | str | None" = None
    """A dataset, or a function without arguments that returns one. A loader brings its own."""
    collate: Callable[[list[Any]], Any] | str | None = None
    """The collate function for ``dataset``. None: PyTorch's."""
    model: "nn.Module | Callable[[], nn.Module] | str | None" = None
    """A ``torch.nn.Module``, or a function without arguments that returns one."""
    loss: "Callable[[Any, Any], torch.Tensor] | str | None" = None
    """(outputs, targets) → scalar tensor; or (model, batch) → scalar tensor, where its arguments have these names.
    None: cross entropy, or ``model(**batch).loss`` for mappings."""
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None
    """``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → optimizer, or (model) → optimizer. None:
    ``sgd``."""
    accumulate: int = 1
    """Batches whose gradients are summed before the optimizer steps, at least 1."""
    precision: Precision | None = None
    """The baseline's. None: fp32."""

    @property
    def parts(self) -> dict[WorkloadPart, Any]:
        """Those that are given, by name."""
        return {name: getattr(self, name) for name in get_args(WorkloadPart) if getattr(self, name) is not None}


def config_of(function: str, settings: Mapping[str, Any], names: Collection[str]) -> TuneConfig:
    """With these keywords of a function that takes ``names`` of the table of options; not yet checked."""
    for name in settings:
        if name not in names:
            raise UsageError(f"{function} has no argument {name}. It takes {', '.join(names)}.")
    chosen = dict(settings)
    if isinstance(chosen.get("fix"), Mapping):
        chosen["fix"] = fixed_of([f"{name}={value}" for name, value in chosen["fix"].items()])
    return with_settings(TuneConfig(), chosen)


def job_of(function: str, first: object, others: Mapping[str, Any], parts: Mapping[str, Any]) -> Job:
    """The ``first`` argument itself where it is a Job, else one of these ``parts``.

    Raises UsageError where a Job came with ``others``, or where data or a model is missing: the command line's default
    names are none in Python.
    """
    if isinstance(first, Job) and (beside := [name for name, part in others.items() if part is not None]):
        raise UsageError(
            f"{function} got a Job and also {', '.join(beside)}. Put all parts into the Job, or pass them all as"
            " arguments."
        )
    job = first if isinstance(first, Job) else Job(**parts)
    for kind, names in (("data", ("loader", "dataset")), ("model", ("model",))):
        if not job.parts.keys() & set(names):
            raise UsageError(
                f"{function} was given no {kind}. Pass {' or '.join(names)}, as an object or by the path of a function"
                " that returns it."
            )
    return job


def pack_job(spec: WorkloadSpec, job: Job, **shapes: tuple[int, ...] | None) -> tuple[WorkloadSpec, LiveObjects | None]:
    """The spec with the job's numbers and a label for each object, and the objects packed.

    ``shapes``: the ``input_shape`` of random samples. Raises UsageError for what cannot be used.
    """
    _check_objects(job)
    names: dict[str, Any] = {name: part for name, part in job.parts.items() if isinstance(part, str)}
    given = {name: part for name, part in job.parts.items() if name not in names}
    spec = replace(spec, **names, accumulate=job.accumulate if job.accumulate != 1 else spec.accumulate)
    parts: dict[str, Any] = given | {name: shape for name, shape in shapes.items() if shape is not None}
    if not parts:
        return spec, None
    from loadtune.workload.user_code import pack_parts

    if is_loader(job.loader):
        from loadtune.workload.loaders import LoaderParts

        parts["loader"] = LoaderParts.of(job.loader)  # type: ignore[arg-type]  # no function that returns one
    labels: dict[str, Any] = {name: getattr(part, "__name__", type(part).__name__) for name, part in given.items()}
    return replace(spec, **labels, objects=tuple(given)), pack_parts(parts)


def refuse_recursion(function: str) -> None:
    """The training process imports the caller's modules: one that calls this while it is imported would never end."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _TRAINING_MAIN:
        raise UsageError(
            f"{function} was called again in the training process, while it imported the module that calls it. Put the "
            'call under `if __name__ == "__main__":`, or move the model and the dataset to a module of their own.'
        )


def is_loader(part: object) -> bool:
    """Whether it is a DataLoader; needs no torch."""
    return any(
        each.__name__ == "DataLoader" and each.__module__.startswith("torch.utils.data") for each in type(part).__mro__
    )


_ALLOWED: dict[WorkloadPart, str] = {
    "loader": "a torch.utils.data.DataLoader, or a function without arguments that returns one. Pass a dataset as"
    " dataset",
    "dataset": "a dataset, with `__getitem__` or an `__iter__` that begins anew, or a function without arguments that"
    " returns one. Pass a DataLoader as loader",
    "collate": "a function (list of samples) -> batch",
    "model": "a torch.nn.Module, or a function without arguments that returns one",
    "loss": "a function (outputs, targets) -> scalar tensor, or (model, batch) -> scalar tensor",
    "optimizer": "'sgd' (with momentum 0.9), 'adamw', or a function that makes an optimizer of the model's parameters: "
    "`lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`",
}


def _check_objects(job: Job) -> None:
    for name, part in job.parts.items():
        if isinstance(part, str) or callable(part) or (name == "loader" and is_loader(part)):
            continue
        readable = hasattr(part, "__getitem__") or (hasattr(part, "__iter__") and not hasattr(part, "__next__"))
        if name != "dataset" or is_loader(part) or not readable:
            found = repr(part) if isinstance(part, int | float) else f"of type {type(part).__name__}"
            raise UsageError(f"{name} is {found}; it can be {_ALLOWED[name]}.")
    checked("accumulate", int, job.accumulate, 1)
    if job.precision is not None:
        one_of("precision", job.precision, PRECISIONS)
