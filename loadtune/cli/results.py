"""``loadtune report`` and ``export``: commands on stored runs.

None measures or loads torch. Heavy modules are imported within the commands.
"""

import sys
import warnings
from pathlib import Path

from loadtune.cli.options import VERBOSE, Parser, option
from loadtune.errors import UsageError, one_of
from loadtune.records.config import TuneConfig

_BOARD = "loadtune-board.html"


def report(results: list[str], out: str | None, board: bool, verbose: bool) -> None:
    """Write the HTML report of one result, or of several.

    The report is one file that opens offline in any browser. For a folder with several runs it shows the newest one,
    or with --board a page over all of them.

    Examples:

      loadtune report
      loadtune report loadtune-results/FakeData-resnet50 --out resnet50.html
      loadtune report h100 h200
      loadtune report benchmarks/results --board --out board.html
    """
    page = None if out is None else Path(out)
    if page is not None and page.suffix.lower() not in (".html", ".htm"):  # result.json would be overwritten
        raise UsageError(f"--out is {out}; it must name an HTML file. Write for example --out report.html.")
    from loadtune.report.page import PAGE_FILE, write_board, write_page
    from loadtune.store import load_result, result_files

    folders = [Path(each) for each in results or [TuneConfig().out]]
    if board or len(folders) > 1:
        print(write_board(folders, page or Path(_BOARD)))
    else:
        file = result_files(folders[0])[-1]
        print(write_page(load_result(file), page or file.parent / PAGE_FILE))


_RESULTS = "A result.json, or a folder that holds one. Several: one page over all results below them."
_PAGE = f"HTML file to write. [default: report.html beside the result; for several, {_BOARD}]"
REPORT = Parser(
    report,
    option("results", help=_RESULTS, value="RESULT", nargs="*"),
    option("-o", "--out", help=_PAGE, value="FILE"),
    option("--board", help="One page over all results below the folders."),
    VERBOSE,
    takes="[RESULT]...",
)


def export(
    result: str | None, format: str, out: str | None, change: str | None, keep_batch_size: bool, verbose: bool
) -> None:
    """Write the confirmed winner for another program to read.

    With --change, RESULT may also be an inflight.json of `loadtune exec --out`, or a folder with one.

    Forms:

      python       loader_kwargs.py to import: LOADER_KWARGS, and RECIPE with
                   precision, memory format and fused optimizer
      pytorch      loader and training step of a plain loop, to paste
      json         loader arguments, precision and throughput as JSON

    Examples:

      loadtune export --out loader_kwargs.py
      loadtune export loadtune-results/FakeData-resnet50 --format pytorch
      loadtune export --change decode tuned/inflight.json
    """
    from loadtune.api.adopt import export as written
    from loadtune.report.forms import FORMS
    from loadtune.store import load_result, not_written

    one_of("--format", format, tuple(FORMS))
    with warnings.catch_warnings(record=True, action="always") as told:
        if change is not None:
            text = _code_of(change, None if result is None else Path(result))
        else:
            text = written(load_result(result), format, keep_batch_size=keep_batch_size)
    for each in told:
        print(f"warning: {each.message}", file=sys.stderr)
    if out is None:
        print(text, end="")
        return
    try:
        Path(out).write_text(text, encoding="utf-8")  # in place: it may be /dev/null
    except OSError as error:
        raise not_written(Path(out), error, len(text)) from error
    print(f"Written to {out}", file=sys.stderr)


_RESULT = "result.json, or a folder with one. [default: the newest run here]"
_CHANGE = "Write the code of this change of your code, as in decode, and no settings."
EXPORT = Parser(
    export,
    option("result", help=_RESULT, value="RESULT", nargs="?"),
    option("--format", help="One of the forms listed above. [default: python]", value="FORM", default="python"),
    option("-o", "--out", help="File to write; replaced if it exists. [default: stdout]", value="FILE"),
    option("--change", help=_CHANGE, value="NAME"),
    option("--keep-batch-size", help="Take the best settings at your --batch-size of `loadtune run`."),
    VERBOSE,
    takes="[RESULT]",
)


def _code_of(change: str, path: Path | None) -> str:
    """The lines to paste of a change whose name or title has this word in it."""
    from loadtune.inflight.account import RESULT_FILE, read_accounts
    from loadtune.store import load_result

    file = None if path is None else path / RESULT_FILE if path.is_dir() else path
    if file is not None and file.name == RESULT_FILE and file.exists():
        try:
            tried = [(each.name, each.title, each.code) for account in read_accounts(file) for each in account.changes]
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
