"""``loadtune check``: is a stored winner still as good? A gate for CI.

Words to a `Check`, its outcome to an exit code.
"""

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
    baseline: Annotated[Path, typer.Option(help="result.json, or a folder whose newest run counts.")],
    tolerance: Annotated[str, typer.Option(metavar="5%", help="Loss that is let pass, as 5% or 0.05.")] = "5%",
    time_budget: Annotated[
        float, typer.Option(help="Seconds, the start included; torch.compile's come on top.")
    ] = 60.0,
    keep_batch_size: Annotated[bool, KEEP_BATCH_SIZE] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON on stdout, all else on stderr.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Annotated[bool, DEBUG] = False,
) -> None:
    """Measure a stored result again and report a regression.

    A winner that was picked for its samples per joule is held to those instead.

    Trains real steps with fresh loaders, three runs or more, until the 95% interval of now ÷ then tells or the time
    is spent.

    \b
    Ends with 0  it held: the whole interval is above 1 − tolerance
              1  it fell: the whole interval is below
              2  something to mend: a bad option, a result that cannot be read
                 or has no interval
              3  it could not be told: too wide an interval, another device,
                 or a workload that cannot be built here

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
