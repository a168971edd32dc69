"""A result in the hands of a user: shown, exported, as arguments for a training script or as a new DataLoader.

Apart from the report: it compares this machine with the result's, and warns.
"""

import os
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from loadtune import store
from loadtune.api.given import in_python, is_loader
from loadtune.errors import MachineMismatchError, MachineMismatchWarning, ResultError, UsageError, one_of
from loadtune.records.config import Recipe, TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.result import Result, Winner
from loadtune.report.forms import FORMS
from loadtune.report.sentences import doubt_of
from loadtune.report.terminal import terminal_answer

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class TuningResult(Result):
    """Everything one run measured and concluded. Fields are those of `Result`. ``print`` shows the answer."""

    __slots__ = ()

    @classmethod
    def of(cls, result: Result) -> Self:
        """The same, for a user."""
        return cls(**{each.name: getattr(result, each.name) for each in fields(result)})

    def __repr__(self) -> str:
        """What `loadtune run` prints at its end."""
        return in_python("\n".join(terminal_answer(self)))

    def apply(self, loader: "DataLoader[Any]", *, keep_batch_size: bool = False) -> "DataLoader[Any]":
        """A new DataLoader with the settings of the answer; all else is as in `loader`, which stays as it
        is: the same dataset, sampler or batch sampler, collate function, ``worker_init_fn``, generator, multiprocessing
        context, timeout and ``drop_last``. Of a subclass of DataLoader nothing else is kept: a
        UserWarning says so.

        ``keep_batch_size`` takes the answer at the batch size that the run was given. A loader whose batch sampler or
        dataset makes the batches keeps them. Warns with UserWarning where the answer is not confirmed, as
        `best_loader_kwargs` does. Raises ResultError where there is no answer.
        """
        config = _handed(self, keep_batch_size).config
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
                "dataset, sampler and functions. Pass the arguments of best_loader_kwargs() to "
                f"{parts.loader_class} to keep what else it does."
            )
            warnings.warn(message, UserWarning, stacklevel=2)
        return parts.make(config.loader)


def load_result(path: str | os.PathLike[str] | None = None) -> TuningResult:
    """Read a result: of a ``result.json``, a run's folder, or the newest run below a folder.

    None is ``./loadtune-results``. Newest goes by the time in the run's folder name: copying changes a file's own time.
    """
    return TuningResult.of(store.load_result(path))


def export(result: Result, format: str, *, keep_batch_size: bool = False) -> str:
    """The answer of a result as text for another program.

    ``format`` is ``python``, ``pytorch`` or ``json``. ``keep_batch_size`` exports the answer at the batch size that the
    run was given, instead of that at any batch size. Warns with UserWarning where the answer is not confirmed. Raises
    UsageError for an unknown format, ResultError where the result has no answer.
    """
    form = FORMS[one_of("format", format, tuple(FORMS))]
    return form(result, _handed(result, keep_batch_size))


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
    result, config = _best_config(path, strict, keep_batch_size)
    return result.loader_kwargs(config)


def best_recipe(
    path: str | os.PathLike[str] | None = None, *, strict: bool = False, keep_batch_size: bool = False
) -> Recipe:
    """Precision, memory format and fused optimizer of the answer.

    Arguments, warnings and errors are those of `best_loader_kwargs`, whose result was measured with this recipe.
    """
    return _best_config(path, strict, keep_batch_size)[1].recipe


def _handed(result: Result, keep_batch_size: bool, stacklevel: int = 3) -> Winner:
    """The best at any batch size, or at the one that the run was given, for use. A UserWarning says why it is not
    confirmed, where that is so. Raises ResultError where there is none. ``stacklevel``: of the line that called the
    public function."""
    winner = result.best_at_your_batch if keep_batch_size else result.best
    if winner is not None:
        if (doubt := doubt_of(result, winner)) is not None:
            message = f"The answer of the run of {result.created} is not confirmed: {doubt}"
            warnings.warn(message, stacklevel=stacklevel)
        return winner
    if keep_batch_size and result.config.yours.batch_size is None:
        raise ResultError(
            "The run has no winner at your batch size, because it was given none. Run `loadtune run` with --batch-size,"
            " or leave keep_batch_size out for the best at any batch size."
        )
    why = f" (cut short: {result.cut_short.rstrip('.')})" if result.cut_short else ""
    raise ResultError(
        f"The run of {result.created} has no confirmed winner{why}. Name another result, or run `loadtune run` again;"
        " --resume continues a run that was cut short."
    )


def _best_config(
    path: str | os.PathLike[str] | None, strict: bool, keep_batch_size: bool
) -> tuple[Result, TrialConfig]:
    from loadtune.host.machine import read_host  # not at import: the driver's library loads with it

    result = load_result(path)
    config = _handed(result, keep_batch_size, stacklevel=4).config
    if found := differences(result, read_host()):
        message = f"This result was measured on another machine ({'; '.join(found)})."
        if strict:
            raise MachineMismatchError(f"{message} Run `loadtune run` on this machine, or leave out strict=True.")
        message += " Another configuration may be the best here: run `loadtune run` on this machine."
        warnings.warn(message, MachineMismatchWarning, stacklevel=3)  # the line that called the public function
    return result, config


def differences(result: Result, here: HostFacts) -> list[str]:
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
