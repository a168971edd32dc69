"""``loadtune report``: the HTML report of one result, or one page over several. Measures nothing.

Heavy modules are imported within the command.
"""

from pathlib import Path
from typing import Annotated

import typer

from loadtune.ending import told_plainly
from loadtune.errors import UsageError
from loadtune.records import TuneConfig

_BOARD = "loadtune-board.html"


def report(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A result.json, or a folder that holds one. Several: one page over all results below them."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"HTML file to write. [default: report.html beside the result; for several, {_BOARD}]"
        ),
    ] = None,
    board: Annotated[bool, typer.Option("--board", help="One page over all results below the folders.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
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
    with told_plainly(debug):
        if out is not None and out.suffix.lower() not in (".html", ".htm"):  # result.json would be overwritten
            raise UsageError(f"--out is {out}; it must name an HTML file. Write for example --out report.html.")
        typer.echo(_written(results or [Path(TuneConfig().out)], out, board=board))


def _written(results: list[Path], out: Path | None, *, board: bool) -> Path:
    from loadtune.report.page.write import PAGE_FILE, write_board, write_page
    from loadtune.report.store import load_result, newest_file

    if board or len(results) > 1:
        return write_board(results, out or Path(_BOARD))
    file = newest_file(results[0])
    return write_page(load_result(file), out or file.parent / PAGE_FILE)
