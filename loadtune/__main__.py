"""The ``loadtune`` command, and ``python -m loadtune``."""

import sys

from loadtune import cli_exec, ending


def main() -> None:
    """Importing typer takes longer than all that `exec` does, so typer reads only what `read` cannot."""
    ending.lasting_streams()
    found = cli_exec.read(sys.argv[2:]) if sys.argv[1:2] == ["exec"] else None
    if found is not None:
        cli_exec.exec_(**found)
    from loadtune.cli import app

    app(prog_name="loadtune")


if __name__ == "__main__":
    main()
