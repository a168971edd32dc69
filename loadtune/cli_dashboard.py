"""``loadtune dashboard``: a run's study in the browser, while it runs or afterwards. Words to a server."""

from pathlib import Path
from typing import Annotated

import typer

from loadtune.ending import interruption_code, termination_as_interruption, told_plainly
from loadtune.records import TuneConfig


def dashboard(
    run: Annotated[
        Path | None,
        typer.Argument(help="A run's folder, or one above it: the newest counts. [default: the newest]"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of 127.0.0.1. 0: any free one.")] = 8080,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Show a run's study in optuna-dashboard, live while it runs.

    Only reads: the study is not changed, and a run that writes it is not disturbed. Configurations that do not run are
    infeasible there, those that a bound screened out are pruned and have no value. Ctrl-C ends it.

    Takes the extra: pip install '.[live]' in the checkout.

    Examples:

    \b
      loadtune dashboard
      loadtune dashboard loadtune-results/FakeData-resnet50 --port 0
      ssh -L 8080:127.0.0.1:8080 HOST    # from elsewhere, then the same address
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
