"""All forms by name. In: a result and a form's name. Out: text that the other program takes as it is."""

from collections.abc import Callable, Mapping

from loadtune.errors import UsageError
from loadtune.records import TuningResult
from loadtune.report.forms.frameworks import accelerate, lightning, transformers
from loadtune.report.forms.handed import Handed, handed
from loadtune.report.forms.plain import env, json, markdown
from loadtune.report.forms.python import python_module, pytorch_loop
from loadtune.report.forms.trackers import github_action_benchmark

TENSORBOARD = "tensorboard"
"""Not text: a folder of event files, which `loadtune.handover` has written by a process that may import torch."""


FORMS: Mapping[str, Callable[[Handed], str]] = {
    "python": python_module,
    "pytorch": pytorch_loop,
    "lightning": lightning,
    "hf": transformers,
    "accelerate": accelerate,
    "json": json,
    "env": env,
    "markdown": markdown,
    "github-action-benchmark": github_action_benchmark,
}


def export(result: TuningResult, format: str, *, keep_batch_size: bool = False) -> str:
    """The confirmed winner as text in one of `FORMS`; ``keep_batch_size`` takes the one at the user's batch size.

    A function and no method: records know nothing of reports. Raises UsageError for a form that is not known,
    ResultError where there is no confirmed winner.
    """
    form = FORMS.get(format)
    if form is None:
        where = " It is a folder: use export_tensorboard." if format == TENSORBOARD else ""
        raise UsageError(f"{format!r} is no text form.{where} It can be {', '.join(FORMS)}. Name one of these.")
    return form(handed(result, keep_batch_size=keep_batch_size))
