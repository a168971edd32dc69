"""``loadtune check``: a gate for CI. In: options. Out: a printed `Check` and an exit code."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadtune.arguments import check_seconds, share_of
from loadtune.cli_results import DEBUG, KEEP_BATCH_SIZE
from loadtune.ending import termination_as_interruption, told_plainly
from loadtune.records import Check, CheckOutcome
from loadtune.terminal import show

EXIT_CODES: dict[CheckOutcome, int] = {"held": 0, "fell": 1, "unclear": 3}


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


def _print(found: Check, *, as_json: bool) -> None:
    from loadtune.report import store
    from loadtune.report.comparison import check_view
    from loadtune.report.text import handover_text

    if as_json:
        typer.echo(store.as_json(found), nl=False)
    else:
        show(handover_text(check_view(found)), sys.stdout)
