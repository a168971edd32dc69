"""The ``loadtune`` command, and ``python -m loadtune``."""

import sys

from loadtune.cli import ending
from loadtune.cli import exec as command


def main() -> None:
    """Importing typer takes longer than all that `exec` does, so typer reads only what `read` cannot."""
    ending.lasting_streams()
    found = command.read(sys.argv[2:]) if sys.argv[1:2] == ["exec"] else None
    if found is not None:
        command.exec_(**found)
    from loadtune.cli.app import app

    app(prog_name="loadtune")


if __name__ == "__main__":
    main()
