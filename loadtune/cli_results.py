"""``loadtune export``, ``compare`` and ``schema``: a stored result handed over.

Nothing is measured, and torch is not loaded.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadtune.ending import NO_ANSWER, told_plainly
from loadtune.errors import UsageError
from loadtune.records import TuningResult
from loadtune.terminal import show

KEEP_BATCH_SIZE = typer.Option("--keep-batch-size", help="The winner at the batch size that the run was given.")
DEBUG = typer.Option("--debug", help="Show tracebacks.")


def export(
    result: Annotated[
        Path | None, typer.Argument(help="result.json, or a folder with one. [default: the newest run here]")
    ] = None,
    format: Annotated[str, typer.Option(metavar="FORM", help="One of the forms above.")] = "python",
    out: Annotated[Path | None, typer.Option(help="File to write, replaced if there. [default: stdout]")] = None,
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Hand the confirmed winner to another program.

    Forms:

    \b
      python       loader_kwargs.py to import: LOADER_KWARGS and RECIPE
      pytorch      loader and training step of a plain loop, to paste
      lightning    a LightningDataModule and Trainer's arguments
      hf           fields of transformers.TrainingArguments
      accelerate   Accelerator's arguments
      json         the same as data
      env          LOADTUNE_BATCH_SIZE=… for a shell, Docker or $GITHUB_ENV
      markdown     a table and code, for a pull request or a job's summary
      github-action-benchmark
                   entries for its tool customBiggerIsBetter
      tensorboard  one curve a figure over the trials; --out is a folder

    Examples:

    \b
      loadtune export --out loader_kwargs.py
      loadtune export loadtune-results/FakeData-resnet50 --format hf
      loadtune export --format env >> "$GITHUB_ENV"
      loadtune export --format tensorboard --out runs/loadtune
    """
    with told_plainly(debug):
        from loadtune.report.store import load_result

        _export(load_result(result), format, out, keep_batch_size=keep_batch_size)


def compare(
    before: Annotated[Path, typer.Argument(help="result.json, or a folder whose newest run counts.")],
    after: Annotated[Path, typer.Argument(help="The other one.")],
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Compare two results of one workload.

    What changed in the winner, its throughput with the interval of the ratio, the ceilings, and the machine and
    versions around it. Ends with 1 where a run has no winner to compare, with 2 where the two trained different things.

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


def schema(debug: Annotated[bool, DEBUG] = False) -> None:
    """Print the JSON Schema of result.json.

    Example:

    \b
      loadtune schema > result.schema.json
    """
    with told_plainly(debug):
        from loadtune.report.schema import kept_schema

        typer.echo(kept_schema(), nl=False)


def _export(result: TuningResult, format: str, out: Path | None, *, keep_batch_size: bool) -> None:
    from loadtune.report.forms.write import FORMS, TENSORBOARD
    from loadtune.report.forms.write import export as written

    if format == TENSORBOARD:
        _export_scalars(result, out)
        return
    if format not in FORMS:
        raise UsageError(f"--format is {format!r}; it can be {', '.join((*FORMS, TENSORBOARD))}. Name one of these.")
    text = written(result, format, keep_batch_size=keep_batch_size)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--out {out} cannot be written ({error.strerror or error}). It takes a file in a folder that is there and"
            " that this user may write to. Name another one."
        ) from error
    typer.echo(f"Written to {out}", err=True)


def _export_scalars(result: TuningResult, out: Path | None) -> None:
    from loadtune.handover import export_tensorboard

    if out is None:
        raise UsageError("--format tensorboard writes event files, which take a folder. Name one with --out.")
    typer.echo(f"Written to {export_tensorboard(result, out)}", err=True)
