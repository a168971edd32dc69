"""``loadtune report``, ``export`` and ``compare``: commands on stored runs.

None measures or loads torch. Heavy modules are imported within the commands.
"""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from loadtune.cli_options import Json, KeepBatchSize, Verbose
from loadtune.ending import NO_ANSWER, interruption_code, show, termination_as_interruption
from loadtune.errors import UsageError
from loadtune.options import number_of, one_of, share_of
from loadtune.records.config import TuneConfig

UNCLEAR = 3
"""Exit code of ``compare --tolerance`` where the interval does not tell."""
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
    live: Annotated[
        bool, typer.Option("--live", help="Show the run's trials in optuna-dashboard, also while it goes on.")
    ] = False,
    port: Annotated[
        str, typer.Option(metavar="N", help="With --live: port on 127.0.0.1; 0 takes any free one.")
    ] = "8080",
    verbose: Verbose = False,
) -> int:
    """Write the HTML report of one result, or of several.

    The report is one file that opens offline in any browser. For a folder with several runs it shows the newest one,
    or with --board a page over all of them. For the folder that $LOADTUNE_CACHE names it prints a table of what
    trainings under `loadtune exec` found.

    --live needs optuna-dashboard: pip install '.[live]' in the checkout. It only reads, until Ctrl-C.

    Examples:

    \b
      loadtune report
      loadtune report loadtune-results/FakeData-resnet50 --out resnet50.html
      loadtune report h100 h200
      loadtune report benchmarks/results --board --out board.html
      loadtune report --live
    """
    if out is not None and out.suffix.lower() not in (".html", ".htm"):  # result.json would be overwritten
        raise UsageError(f"--out is {out}; it must name an HTML file. Write for example --out report.html.")
    from loadtune.inflight.files import LEARNT_COLUMNS, learnt_rows
    from loadtune.report.page.write import PAGE_FILE, write_board, write_page
    from loadtune.report.store import load_result, result_files
    from loadtune.report.tables import Table

    results = results or [Path(TuneConfig().out)]
    if live:
        return _serve(results[0], number_of("--port", int, port, 0, 65535))
    if len(results) == 1 and (rows := learnt_rows(results[0])):
        show([Table(columns=LEARNT_COLUMNS, rows=tuple(rows))])
    elif board or len(results) > 1:
        typer.echo(write_board(results, out or Path(_BOARD)))
    else:
        file = result_files(results[0])[-1]
        typer.echo(write_page(load_result(file), out or file.parent / PAGE_FILE))
    return 0


def _serve(run: Path, port: int) -> int:
    """Until a signal ends it, whose exit code is returned."""
    from loadtune.report.store import STUDY_FILE, files_below
    from loadtune.search.study import HOST, dashboard_server

    todo = "A run writes it when its search begins. Name the folder of a run."
    file = files_below(run, STUDY_FILE, "study", todo)[-1]
    with termination_as_interruption(), dashboard_server(file, port) as server:
        typer.echo(f"Study: {file}\nDashboard: http://{HOST}:{server.server_port}/dashboard\nCtrl-C ends it.")
        try:
            server.serve_forever()
        except KeyboardInterrupt as interruption:
            code = interruption_code(str(interruption))
    return code


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
    keep_batch_size: KeepBatchSize = False,
    verbose: Verbose = False,
) -> None:
    """Write the confirmed winner for another program to read.

    Forms:

    \b
      python       loader_kwargs.py to import: LOADER_KWARGS, and RECIPE with
                   precision, memory format and fused optimizer
      pytorch      loader and training step of a plain loop, to paste
      json         loader arguments, precision and throughput as JSON
      env          LOADTUNE_BATCH_SIZE=… for a shell, Docker or $GITHUB_ENV
      markdown     a table and code, for a pull request or a job's summary
      github-action-benchmark
                   entries for its tool customBiggerIsBetter

    Examples:

    \b
      loadtune export --out loader_kwargs.py
      loadtune export loadtune-results/FakeData-resnet50 --format pytorch
      loadtune export --format env >> "$GITHUB_ENV"
    """
    from loadtune.report.forms import FORMS
    from loadtune.report.forms import export as written
    from loadtune.report.store import load_result, not_written

    one_of("--format", format, tuple(FORMS))
    stored = load_result(result)
    with warnings.catch_warnings(record=True) as told:
        text = written(stored, format, keep_batch_size=keep_batch_size)
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


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="result.json, or a folder: its newest run.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The other result, likewise.")],
    tolerance: Annotated[
        str | None, typer.Option(metavar="5%", help="Loss of throughput that passes, as 5% or 0.05.")
    ] = None,
    keep_batch_size: KeepBatchSize = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Compare two results of one workload.

    Shows both winners, the ratio of their throughputs with its interval, and what differs in machine and
    versions. The exit code is 1 where a run has no winner, 2 where the workloads differ.

    \b
    Exit code with --tolerance
      0  held: the whole interval of the ratio is above 1 − tolerance
      1  fell: the whole interval is below 1 − tolerance
      2  error: a bad option, other workloads, or a result that cannot be read
      3  unclear: neither, or one of the answers is not confirmed

    Examples:

    \b
      loadtune compare old/result.json loadtune-results/FakeData-resnet50
      loadtune compare h100 h200 --json
      loadtune compare baseline loadtune-results --tolerance 10%
    """
    from loadtune.report.compare import compare as compared
    from loadtune.report.compare import view
    from loadtune.report.store import load_result

    allowed = None if tolerance is None else share_of("--tolerance", tolerance)
    both = load_result(before), load_result(after)
    found = compared(*both, keep_batch_size=keep_batch_size, tolerance_fraction=allowed)
    show(view(found), found, json=json)
    if found.outcome is not None:
        return {"held": 0, "fell": NO_ANSWER, "unclear": UNCLEAR}[found.outcome]
    return NO_ANSWER if found.ratio is None else 0
