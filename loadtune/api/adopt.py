"""The confirmed winner of a result, as arguments for a training script or as a new DataLoader.

Apart from the report: it compares this machine with the result's.
"""

import os
import warnings
from typing import TYPE_CHECKING, Any

from loadtune.api.objects import is_loader
from loadtune.errors import MachineMismatchError, MachineMismatchWarning, UsageError
from loadtune.records.answer import handed_winner, loader_kwargs
from loadtune.records.config import Recipe, TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.result import TuningResult
from loadtune.report.store import load_result

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def best_loader_kwargs(
    path: str | os.PathLike[str] | None = None, *, strict: bool = False, keep_batch_size: bool = False
) -> dict[str, Any]:
    """The DataLoader arguments of the answer: ``DataLoader(dataset, **best_loader_kwargs())``.

    Your own where nothing is proven better. ``path`` is as in `load_result`: a file, a folder, or None for the newest
    result. ``keep_batch_size`` returns the answer at the batch size that the run was given, instead of that at any
    batch size. Where your batch sampler or dataset makes the batches, ``batch_size`` is not among them.

    Warns with MachineMismatchWarning where GPU, usable cores or torch differ from the result's; ``strict`` raises
    MachineMismatchError instead. Warns with UserWarning where the answer is not confirmed: measured once, cut short in
    the confirmation, or with an interval that includes 0. Raises ResultError where the result has no answer.
    """
    return loader_kwargs(*_best_config(path, strict, keep_batch_size))


def best_recipe(
    path: str | os.PathLike[str] | None = None, *, strict: bool = False, keep_batch_size: bool = False
) -> Recipe:
    """Precision, memory format and fused optimizer of the answer.

    Arguments, warnings and errors are those of `best_loader_kwargs`, whose result was measured with this recipe.
    """
    return _best_config(path, strict, keep_batch_size)[1].recipe


def apply(result: TuningResult, loader: "DataLoader[Any]", *, keep_batch_size: bool = False) -> "DataLoader[Any]":
    """See `TuningResult.apply`."""
    config = handed_winner(result, keep_batch_size=keep_batch_size).config
    from loadtune.workload.loaders import LoaderParts  # imports torch, which whoever has a loader has done

    if not is_loader(loader):
        raise UsageError(
            f"apply got a value of type {type(loader).__name__}; it takes a torch.utils.data.DataLoader. Pass the "
            "loader of the dataset, or use best_loader_kwargs()."
        )
    parts = LoaderParts.of(loader)
    if parts.loader_class is not None:
        message = (
            f"The loader is a {parts.loader_class}; the new one is a torch.utils.data.DataLoader with the same "
            f"dataset, sampler and functions. Pass the arguments of best_loader_kwargs() to {parts.loader_class} to "
            "keep what else it does."
        )
        warnings.warn(message, UserWarning, stacklevel=3)  # the line that called the public method
    return parts.make(config.loader)


def _best_config(
    path: str | os.PathLike[str] | None, strict: bool, keep_batch_size: bool
) -> tuple[TuningResult, TrialConfig]:
    from loadtune.host.machine import read_host  # not at import: the driver's library loads with it

    result = load_result(path)
    config = handed_winner(result, keep_batch_size=keep_batch_size).config
    if found := differences(result, read_host()):
        message = f"This result was measured on another machine ({'; '.join(found)})."
        if strict:
            raise MachineMismatchError(f"{message} Run `loadtune run` on this machine, or leave out strict=True.")
        message += " Another configuration may be the best here: run `loadtune run` on this machine."
        warnings.warn(message, MachineMismatchWarning, stacklevel=3)  # the line that called the public function
    return result, config


def differences(result: TuningResult, here: HostFacts) -> list[str]:
    """How this machine differs from the result's, each as ``name: value in the result, here value``."""
    then, measured_on = result.host, result.device.name if result.device.kind == "cuda" else "measured on the CPU"
    names_then, names_here = ({gpu.name for gpu in host.gpus} for host in (then, here))
    is_there = names_then == names_here if result.device.kind == "cpu" else result.device.name in names_here
    facts = {
        "GPU": (measured_on, measured_on if is_there else ", ".join(sorted(names_here)) or "none"),
        "usable cores": (then.num_usable_cores, here.num_usable_cores),
        "torch": (then.torch or "none", here.torch or "none"),
    }
    return [f"{name}: {before}, here {now}" for name, (before, now) in facts.items() if before != now]
