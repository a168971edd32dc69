"""``loadtune report`` and ``export``: commands on stored runs.

None measures or loads torch. Heavy modules are imported within the commands.
"""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from loadtune.cli.options import Verbose
from loadtune.errors import UsageError, one_of
from loadtune.records.config import TuneConfig

_BOARD = "loadtune-board.html"


def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RESULT",
            help="A result.json, or a folder that holds one. Several: one page over all results below them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help=f"HTML file to write. [default: report.html beside the result; for several, {_BOARD}]",
        ),
    ] = None,
    board: Annotated[bool, typer.Option("--board", help="One page over all results below the folders.")] = False,
    verbose: Verbose = False,
) -> int:
    """Write the HTML report of one result, or of several.

    The report is one file that opens offline in any browser. For a folder with several runs it shows the newest one,
    or with --board a page over all of them.

    Examples:

    \b
      loadtune report
      loadtune report loadtune-results/FakeData-resnet50 --out resnet50.html
      loadtune report h100 h200
      loadtune report benchmarks/results --board --out board.html
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):  # result.json would be overwritten
        raise UsageError(f"--out is {out}; it must name an HTML file. Write for example --out report.html.")
    from loadtune.report.page.write import PAGE_FILE, write_board, write_page
    from loadtune.report.store import load_result, result_files

    results = results or [Path(TuneConfig().out)]
    if board or len(results) > 1:
        typer.echo(write_board(results, out or Path(_BOARD)))
    else:
        file = result_files(results[0])[-1]
        typer.echo(write_page(load_result(file), out or file.parent / PAGE_FILE))
    return 0


def export(
    result: Annotated[
        Path | None,
        typer.Argument(metavar="RESULT", help="result.json, or a folder with one. [default: the newest run here]"),
    ] = None,
    format: Annotated[str, typer.Option(metavar="FORM", help="One of the forms listed above.")] = "python",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="File to write; replaced if it exists. [default: stdout]"),
    ] = None,
    change: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write the code of this change of your code, as in decode, and no settings."),
    ] = None,
    keep_batch_size: Annotated[
        bool, typer.Option("--keep-batch-size", help="Take the best settings at your --batch-size of `loadtune run`.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Write the confirmed winner for another program to read.

    With --change, RESULT may also be an inflight.json of `loadtune exec --out`, or a folder with one.

    Forms:

    \b
      python       loader_kwargs.py to import: LOADER_KWARGS, and RECIPE with
                   precision, memory format and fused optimizer
      pytorch      loader and training step of a plain loop, to paste
      json         loader arguments, precision and throughput as JSON

    Examples:

    \b
      loadtune export --out loader_kwargs.py
      loadtune export loadtune-results/FakeData-resnet50 --format pytorch
      loadtune export --change decode tuned/inflight.json
    """
    from loadtune.report.forms import FORMS
    from loadtune.report.forms import export as written
    from loadtune.report.store import load_result, not_written

    one_of("--format", format, tuple(FORMS))
    with warnings.catch_warnings(record=True) as told:
        if change is not None:
            text = _code_of(change, result)
        else:
            text = written(load_result(result), format, keep_batch_size=keep_batch_size)
    for each in told:
        typer.echo(f"warning: {each.message}", err=True)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")  # in place: it may be /dev/null
    except OSError as error:
        raise not_written(out, error, len(text)) from error
    typer.echo(f"Written to {out}", err=True)


def _code_of(change: str, path: Path | None) -> str:
    """The lines to paste of a change whose name or title has this word in it."""
    from loadtune.inflight import files
    from loadtune.report.store import load_result

    file = None if path is None else path / files.RESULT_FILE if path.is_dir() else path
    if file is not None and file.name == files.RESULT_FILE and file.exists():
        try:
            tried = [(each.name, each.title, each.code) for account in files.read(file) for each in account.changes]
        except (OSError, ValueError) as error:
            raise UsageError(f"{error}. Name an inflight.json of `loadtune exec --out`.") from None
    else:
        remedies = load_result(path).remedies
        tried = [(each.name, each.title, each.code) for each in (() if remedies is None else remedies.tried)]
    named = {name: f"# {title}\n{code}\n" for name, title, code in tried if code}
    word = change.lower()
    found = [code for name, code in named.items() if word and word in name]
    found = found or [code for code in named.values() if word and word in code.splitlines()[0].lower()]
    if not found:
        known = f"It has {', '.join(named)}." if named else "No change of the code was found to help in it."
        raise UsageError(f"--change {change} is not in the result. {known}")
    return "\n".join(found)
