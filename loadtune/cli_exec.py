"""``loadtune exec``: a training script as it is, with its loaders tuned while it trains."""

from pathlib import Path
from typing import Annotated

import typer

from loadtune.cli_options import Verbose
from loadtune.ending import told_plainly
from loadtune.errors import UsageError


def exec_(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command that trains, after --.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Write inflight.json and inflight.html into it."),
    ] = None,
    max_workers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most workers of one loader.")] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Leave a loader alone: its dataset's class, or FILE:LINE."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Leave loaders with random samples alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and advise; switch nothing.")] = False,
    until_tuned: Annotated[
        bool,
        typer.Option(
            "--until-tuned",
            help="End the script with exit code 0 once the number of workers is found. Batch sizes are not tried.",
        ),
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Repeat the switches of an inflight.json.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Tune DataLoader workers while a script trains.

    Nothing is changed in the code. Output, exit code, signals and working directory are the script's own.
    Samples and their order stay the same. What is decided is said on stderr.

    Examples:

    \b
      loadtune exec -- python train.py --epochs 90
      loadtune exec --dry-run -- python -m mypackage.train
      loadtune exec --until-tuned -- python train.py
      loadtune exec --out tuned --max-workers 8 -- python train.py
      loadtune exec --replay tuned/inflight.json -- python train.py
    """
    with told_plainly(verbose):
        from loadtune.inflight import account, launch
        from loadtune.inflight.options import Options

        if replay is not None:
            try:
                account.read(replay)
            except (OSError, ValueError) as error:
                raise UsageError(f"--replay: {error}. Name an inflight.json of `loadtune exec --out`.") from None
        options = Options(
            max_workers=max_workers,
            freeze=tuple(freeze or ()),
            exact=exact,
            dry_run=dry_run,
            until_tuned=until_tuned,
            replay=None if replay is None else str(replay.absolute()),
        )
        try:
            code = launch.run(command, options, out)
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be run: {error}. Give a command after --.") from None
    launch.end_as(code)
