"""``loadtune export`` and ``compare``: commands that read stored results.

They measure nothing and do not load torch.
"""

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from loadtune.ending import NO_ANSWER, told_plainly
from loadtune.errors import UsageError
from loadtune.records import TuningResult
from loadtune.terminal import show

KEEP_BATCH_SIZE = typer.Option("--keep-batch-size", help="Take the winner at the batch size that the run was given.")
DEBUG = typer.Option("--debug", help="Show tracebacks.")


def export(
    result: Annotated[
        Path | None, typer.Argument(help="result.json, or a folder with one. [default: the newest run here]")
    ] = None,
    format: Annotated[str, typer.Option(metavar="FORM", help="One of the forms listed above.")] = "python",
    out: Annotated[Path | None, typer.Option(help="File to write; replaced if it exists. [default: stdout]")] = None,
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Write the confirmed winner for another program to read.

    Forms:

    \b
      python       loader_kwargs.py to import: LOADER_KWARGS and RECIPE
      pytorch      loader and training step of a plain loop, to paste
      lightning    a LightningDataModule and arguments of Trainer
      hf           arguments of transformers.TrainingArguments
      accelerate   arguments of Accelerator
      json         loader arguments, recipe and throughput as JSON
      env          LOADTUNE_BATCH_SIZE=… for a shell, Docker or $GITHUB_ENV
      markdown     a table and code, for a pull request or a job's summary
      github-action-benchmark
                   entries for its tool customBiggerIsBetter

    Examples:

    \b
      loadtune export --out loader_kwargs.py
      loadtune export loadtune-results/FakeData-resnet50 --format hf
      loadtune export --format env >> "$GITHUB_ENV"
    """
    with told_plainly(debug):
        from loadtune.report.store import load_result

        _export(load_result(result), format, out, keep_batch_size=keep_batch_size)


def compare(
    before: Annotated[Path, typer.Argument(help="result.json, or a folder, whose newest run is read.")],
    after: Annotated[Path, typer.Argument(help="The other result, likewise.")],
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Compare two results of one workload.

    Shows both winners, the ratio of their throughputs with its interval, the largest batch sizes, and what differs in
    machine and versions. The exit code is 1 where a run has no winner, 2 where the workloads differ.

    Examples:

    \b
      loadtune compare old/result.json loadtune-results/FakeData-resnet50
      loadtune compare h100 h200 --json
    """
    with told_plainly(debug):
        from loadtune.report.comparison import comparison_view
        from loadtune.report.store import as_json, load_result
        from loadtune.report.text import handover_text
        from loadtune.study.compare import compare as compared

        found = compared(load_result(before), load_result(after), keep_batch_size=keep_batch_size)
        if json:
            typer.echo(as_json(found), nl=False)
        else:
            show(handover_text(comparison_view(found)), sys.stdout)
        if found.ratio is None:
            raise typer.Exit(NO_ANSWER)


def _export(result: TuningResult, format: str, out: Path | None, *, keep_batch_size: bool) -> None:
    from loadtune.report.forms.write import FORMS
    from loadtune.report.forms.write import export as written

    if format not in FORMS:
        raise UsageError(f"--format is {format!r}. Allowed: {', '.join(FORMS)}.")
    with warnings.catch_warnings(record=True) as told:
        text = written(result, format, keep_batch_size=keep_batch_size)
    for each in told:
        typer.echo(f"warning: {each.message}", err=True)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--out {out} cannot be written ({error.strerror or error}). Name a file in an existing folder that this"
            " user may write to."
        ) from error
    typer.echo(f"Written to {out}", err=True)
