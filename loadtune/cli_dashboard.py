"""``loadtune dashboard``: a run's study in the browser, while it runs or afterwards."""

from pathlib import Path
from typing import Annotated

import typer

from loadtune.ending import interruption_code, termination_as_interruption, told_plainly
from loadtune.records import TuneConfig


def dashboard(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run's folder, or a folder above it: the newest run below. [default: the newest run]"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes any free one.")] = 8080,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
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
