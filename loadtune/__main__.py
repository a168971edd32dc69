"""The ``loadtune`` command, and ``python -m loadtune``."""

import sys

from loadtune.cli import command
from loadtune.cli.exec import EXEC


def main() -> None:
    """Importing what the other commands need takes longer than all that `exec` does."""
    command.lasting_streams()
    if sys.argv[1:2] == ["exec"]:
        command.end_as(EXEC(sys.argv[2:]))
    from loadtune.cli.app import app

    command.end_as(app(sys.argv[1:]))


if __name__ == "__main__":
    main()
