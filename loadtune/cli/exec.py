"""``loadtune exec``: a training script as it is, with its loaders tuned while it trains."""

from __future__ import annotations  # text until typer is asked: importing it takes longer than all that is done here

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loadtune.cli.ending import told_plainly
from loadtune.errors import UsageError
from loadtune.inflight import files, words
from loadtune.inflight.account import Account
from loadtune.inflight.environment import EXEC_VARIABLE, Options

if TYPE_CHECKING:
    import typer

    from loadtune.cli.options import Verbose

_INJECTED = Path(__file__).parents[1] / "inflight" / "inject"
_FROM_KERNEL = 128  # si_code of a signal that the terminal sends to the whole group: the child has it already
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def exec_(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command that trains, after --.")],
    *,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Write inflight.json, a record of each loader, into it."),
    ] = None,
    max_workers: Annotated[str | None, typer.Option(metavar="N", help="Most workers of one loader.")] = None,
    freeze: Annotated[
        list[str], typer.Option(metavar="NAME", help="Do not tune this loader: its dataset's class, or FILE:LINE.")
    ] = [],  # noqa: B006 - typer's way to say that it may be given several times
    exact: Annotated[bool, typer.Option("--exact", help="Do not tune loaders that draw random numbers.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and advise; change no loader.")] = False,
    until_tuned: Annotated[
        bool,
        typer.Option(
            "--until-tuned",
            help="End the script with exit code 0 once the number of workers is found. Batch sizes are not tried.",
        ),
    ] = False,
    no_advice: Annotated[
        bool, typer.Option("--no-advice", help="Try no changes of your code in a process beside the training.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Tune DataLoader workers while a script trains.

    Your code stays as it is. Output, exit code, signals and working directory are the script's own.
    Samples and their order stay the same. Each decision is printed on stderr.

    Examples:

    \b
      loadtune exec -- python train.py --epochs 90
      loadtune exec --dry-run -- python -m mypackage.train
      loadtune exec --until-tuned -- python train.py
      loadtune exec --out tuned --max-workers 8 -- python train.py
    """
    with told_plainly(verbose):
        if sys.platform != "linux":
            raise UsageError(f"loadtune runs on Linux, and this is {sys.platform}. Use a Linux machine or container.")
        if command[0].startswith("-"):
            import difflib

            why = (
                "It sets only the number of workers, while your command trains. `loadtune run` compares batch sizes "
                "and precisions; `loadtune exec --help` lists the options."
            )
            near = difflib.get_close_matches(command[0], _USUAL, 1)
            todo = f"Did you mean {near[0]}?" if near else why
            raise UsageError(f"`loadtune exec` has no option {command[0]}. {todo}")
        if max_workers is not None:
            from loadtune.api.options import number_of
        options = Options(
            max_workers=None if max_workers is None else number_of("--max-workers", int, max_workers, 1),
            freeze=tuple(freeze),
            exact=exact,
            dry_run=dry_run,
            until_tuned=until_tuned,
            advice=not no_advice,
        )
        try:
            if out is not None:
                Path(out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out is {out} ({error.strerror}). Name a folder that can be written.") from None
        try:
            code = _run_tuned(command, options, None if out is None else Path(out))
        except OSError as error:
            own = f"Give a command after --, as in: loadtune exec -- python {command[0]}"
            raise UsageError(f"{command[0]} cannot be run ({error.strerror}). {own}") from None
    _end_as(code)


_USUAL = {f"--{name.replace('_', '-')}": usual for name, usual in (exec_.__kwdefaults__ or {}).items()}
"""Each option, and its value where it is not given."""


def read(words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of `exec_` on a command line. None: typer is to read it, for help, a short form or an error."""
    found, left = dict[str, Any](), list(words)
    while left and left[0].startswith("-") and left[0] != "--":
        flag, equals, value = left.pop(0).partition("=")
        name, usual = flag[2:].replace("-", "_"), _USUAL.get(flag)
        if usual is not False and not equals and left:
            value = left.pop(0)
        if flag not in _USUAL or (equals if usual is False else not value or value.startswith("-")):
            return None
        found[name] = True if usual is False else [*found.get(name, ()), value] if usual == [] else value
    command = left[left[:1] == ["--"] :]
    return {"command": command, **found} if command else None


def _run_tuned(command: Sequence[str], options: Options, out: Path | None) -> int:
    """Run a command with the hook in all Python processes that it starts, and say at the end what was found.

    Returns its exit code; minus a signal's number where that ended it. Raises OSError where it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="loadtune-", ignore_cleanup_errors=True) as name:
        before = os.environ.get("PYTHONPATH")
        ours = replace(options, folder=name, launcher=(socket.gethostname(), os.getpid()))
        path = f"{_INJECTED}{os.pathsep}{before}" if before else str(_INJECTED)
        variables = {"PYTHONPATH": path, EXEC_VARIABLE: json.dumps(asdict(ours))}
        if (cache := os.environ.get(files.CACHE_VARIABLE)) is not None:
            variables[files.CACHE_VARIABLE] = os.path.abspath(cache)  # the script may go to another folder
        code = _run(command, os.environ | variables)
        with words.ending():
            _tell(Path(name), options, out)
    return code


def _tell(folder: Path, options: Options, out: Path | None) -> None:
    """Say what the processes found, and write it. The first file that cannot be read is named; the others count."""
    found, unread = list[Account](), list[str]()
    for path in sorted(folder.glob("*.json")):
        try:
            found += files.read(path)
        except (OSError, ValueError) as error:
            unread.append(f"what process {path.stem} found is left out: {error}.")
    for line in [*words.summary(found), *unread[:1]] or [_why_nothing(folder)]:
        words.print_line(line)
    known = {part for each in found for part in (each.name, *each.name.split(" at "))}
    for name in dict.fromkeys(options.freeze) if found else ():
        if name not in known:
            words.print_line(f"--freeze {name}: no loader has this name.")
    if out is not None:
        try:
            files.write(found, out)
        except OSError as error:
            words.print_line(f"--out {out}: the result could not be written ({error.strerror}).")


def _end_as(code: int) -> None:
    """Exit as the command did: where a signal ended it, by that signal."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Signals are taken one after another, with who sent them, instead of interrupting this process."""
    heeded = [signal.SIGCHLD, *(each for each in _PASSED_ON if signal.getsignal(each) is not signal.SIG_IGN)]
    as_before = partial(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, heeded))
    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=as_before)
        while child.poll() is None:
            heard = signal.sigwaitinfo(heeded)
            if heard.si_signo != signal.SIGCHLD and heard.si_code != _FROM_KERNEL:
                child.send_signal(heard.si_signo)
        return child.returncode
    finally:
        as_before()


def _why_nothing(folder: Path) -> str:
    if not (folder / "began").exists():
        return (
            "was not active: no Python process loaded it. Python leaves PYTHONPATH out under -I and -E, and "
            "sitecustomize under -S. `loadtune.install()` in the script does the same."
        )
    if (folder / "failed").exists():
        return "was not active, so nothing was tuned."
    if not (folder / "hooked").exists():
        return "no process imported torch's DataLoader, so nothing was tuned."
    return (
        "no torch DataLoader was iterated, so nothing was tuned. Classes with an iterator of their own "
        "(StatefulDataLoader, DALI, WebDataset) are left alone."
    )
