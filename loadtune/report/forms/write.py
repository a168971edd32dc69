"""All forms by name. In: a result and the name of a form. Out: text that the other program reads as it is."""

from collections.abc import Callable, Mapping

from loadtune.errors import UsageError
from loadtune.records import TuningResult
from loadtune.report.forms.export_context import ExportContext, handed
from loadtune.report.forms.frameworks import accelerate, lightning, transformers
from loadtune.report.forms.plain import env, json, markdown
from loadtune.report.forms.python import python_module, pytorch_loop
from loadtune.report.forms.trackers import github_action_benchmark

FORMS: Mapping[str, Callable[[ExportContext], str]] = {
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
    """The answer of a result as text for another program.

    ``format`` is a key of `FORMS`. ``keep_batch_size`` exports the answer at the batch size that the run was given,
    instead of that at any batch size. Warns with UserWarning where the answer is not confirmed. Raises UsageError for
    an unknown format, ResultError where the result has no answer.
    """
    form = FORMS.get(format)
    if form is None:
        raise UsageError(f"{format!r} is not a text format. Allowed: {', '.join(FORMS)}.")
    return form(handed(result, keep_batch_size=keep_batch_size))
