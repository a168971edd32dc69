"""``loadtune report``, ``dashboard``, ``export``, ``compare`` and ``check``: commands on stored runs.

Only ``check`` measures. None loads torch in this process. Heavy modules are imported within the commands.
"""

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from loadtune.arguments import check_seconds, share_of
from loadtune.ending import NO_ANSWER, interruption_code, termination_as_interruption, told_plainly
from loadtune.errors import UsageError
from loadtune.records.config import TuneConfig
from loadtune.report.compare import Check, CheckOutcome, Comparison
from loadtune.terminal import show

EXIT_CODES: dict[CheckOutcome, int] = {"held": 0, "fell": 1, "unclear": 3}
_BOARD = "loadtune-board.html"
KEEP_BATCH_SIZE = typer.Option("--keep-batch-size", help="Take the winner at the batch size that the run was given.")
DEBUG = typer.Option("--debug", help="Show tracebacks.")


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
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Write the HTML report of one result, or of several.

    The report is one file that opens offline in any browser. For a folder with several runs it shows the newest one,
    or with --board a page over all of them. For the folder that $LOADTUNE_CACHE names it prints a table of what
    trainings under `loadtune exec` found.

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
        from loadtune.inflight.learnt import COLUMNS, rows
        from loadtune.report.page.write import PAGE_FILE, write_board, write_page
        from loadtune.report.store import load_result, newest_file
        from loadtune.report.tables import Table, View
        from loadtune.report.text import view_text

        results = results or [Path(TuneConfig().out)]
        if len(results) == 1 and (kept := rows(results[0])):
            table = Table(title="", columns=COLUMNS, rows=tuple(kept))
            show(view_text(View(tables=(table,), sections=())), sys.stdout)
        elif board or len(results) > 1:
            typer.echo(write_board(results, out or Path(_BOARD)))
        else:
            file = newest_file(results[0])
            typer.echo(write_page(load_result(file), out or file.parent / PAGE_FILE))


def dashboard(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run's folder, or a folder above it: the newest run below. [default: the newest run]"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes any free one.")] = 8080,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Show a run's trials in optuna-dashboard, live.

    Only reads: it does not change the study, and does not disturb a run that writes it. The server listens on
    127.0.0.1 until Ctrl-C. A configuration that failed is shown as infeasible, one that was not measured as pruned.

    Needs optuna-dashboard: pip install '.[live]' in the checkout.

    Examples:

    \b
      loadtune dashboard
      loadtune dashboard loadtune-results/FakeData-resnet50 --port 0
      ssh -L 8080:127.0.0.1:8080 HOST  # on your computer; open the same address
    """
    with told_plainly(debug), termination_as_interruption():
        from loadtune.dashboard import dashboard_server, study_file

        file = study_file(run or Path(TuneConfig().out))
        with dashboard_server(file, port) as server:
            typer.echo(f"Study: {file}\nDashboard: {server.url}\nCtrl-C ends it.")
            try:
                server.serve_forever()
            except KeyboardInterrupt as interruption:
                raise typer.Exit(interruption_code(str(interruption))) from None


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
        from loadtune.report.forms import FORMS
        from loadtune.report.forms import export as written
        from loadtune.report.store import load_result

        if format not in FORMS:
            raise UsageError(f"--format is {format!r}. Allowed: {', '.join(FORMS)}.")
        stored = load_result(result)
        with warnings.catch_warnings(record=True) as told:
            text = written(stored, format, keep_batch_size=keep_batch_size)
        for each in told:
            typer.echo(f"warning: {each.message}", err=True)
        if out is None:
            typer.echo(text, nl=False)
            return
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--out {out} cannot be written ({error.strerror or error}). Name a file in an existing folder that"
                " this user may write to."
            ) from error
        typer.echo(f"Written to {out}", err=True)


def compare(
    before: Annotated[Path, typer.Argument(help="result.json, or a folder, whose newest run is read.")],
    after: Annotated[Path, typer.Argument(help="The other result, likewise.")],
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Compare two results of one workload.

    Shows both winners, the ratio of their throughputs with its interval, and what differs in machine and
    versions. The exit code is 1 where a run has no winner, 2 where the workloads differ.

    Examples:

    \b
      loadtune compare old/result.json loadtune-results/FakeData-resnet50
      loadtune compare h100 h200 --json
    """
    with told_plainly(debug):
        from loadtune.report.compare import compare as compared
        from loadtune.report.store import load_result

        found = compared(load_result(before), load_result(after), keep_batch_size=keep_batch_size)
        _print(found, as_json=json)
        if found.ratio is None:
            raise typer.Exit(NO_ANSWER)


def check(
    baseline: Annotated[Path, typer.Option(help="result.json, or a folder, whose newest run is read.")],
    tolerance: Annotated[str, typer.Option(metavar="5%", help="Loss that passes, as 5% or 0.05.")] = "5%",
    time_budget: Annotated[float, typer.Option(help="Seconds, with start-up; torch.compile's are added.")] = 60.0,
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout, all else on stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Measure a stored result again and report a regression.

    Times real training steps in at least three runs. It ends as soon as the 95% interval of the
    ratio now ÷ baseline decides, or when the time is spent. Where the winner was chosen by samples
    per joule, these are compared.

    \b
    Exit code 0  held: the whole interval is above 1 − tolerance
              1  fell: the whole interval is below 1 − tolerance
              2  error: a bad option, or a result that cannot be read, has no
                 confirmed winner or no interval
              3  unclear: the interval is too wide, the device differs, or the
                 workload cannot be built here

    Examples:

    \b
      loadtune check --baseline baseline/result.json
      loadtune check --baseline baseline --tolerance 10% --time-budget 120 --json
    """
    with told_plainly(debug):
        from loadtune.checking import check_baseline
        from loadtune.report.store import load_result

        tolerance_fraction = share_of("--tolerance", tolerance)
        check_seconds("--time-budget", time_budget)
        stored = load_result(baseline)
        with termination_as_interruption():
            found = check_baseline(
                stored,
                tolerance_fraction=tolerance_fraction,
                time_budget_s=time_budget,
                keep_batch_size=keep_batch_size,
                tell=lambda line: None if quiet else typer.echo(line, err=True),
            )
        _print(found, as_json=json)
        raise typer.Exit(EXIT_CODES[found.outcome])


def _print(found: Comparison | Check, *, as_json: bool) -> None:
    from loadtune.report import store
    from loadtune.report.comparison import view
    from loadtune.report.text import view_text

    if as_json:
        typer.echo(store.as_json(found), nl=False)
    else:
        show(view_text(view(found)), sys.stdout)
