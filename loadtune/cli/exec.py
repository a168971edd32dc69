"""``loadtune exec``: a training script as it is, with its loaders tuned while it trains."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from argparse import REMAINDER
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadtune.cli.command import VERBOSE, Parser, option
from loadtune.errors import UsageError
from loadtune.inflight import words
from loadtune.inflight.account import CACHE_VARIABLE, Account, Options, read_accounts, write_accounts
from loadtune.inflight.hook import EXEC_VARIABLE, hooked

_FROM_KERNEL = 128  # si_code of a signal that the terminal sends to the whole group: the child has it already
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def exec_(command: list[str], verbose: bool, out: str | None, freeze: list[str] | None, **words: Any) -> int:
    """Tune DataLoader workers while a script trains.

    Your code stays as it is. Output, exit code, signals and working directory are the script's own.
    Indices and their order stay the same. Each decision is printed on stderr.

    Examples:

      loadtune exec -- python train.py --epochs 90
      loadtune exec --dry-run -- python -m mypackage.train
      loadtune exec --until-tuned -- python train.py
      loadtune exec --out tuned --max-workers 8 -- python train.py
    """
    if sys.platform != "linux":
        raise UsageError(f"loadtune runs on Linux, and this is {sys.platform}. Use a Linux machine or container.")
    command = command[command[:1] == ["--"] :]
    if not command:
        raise UsageError("the command is missing. Give it after --, as in: loadtune exec -- python train.py")
    max_workers, advice = words.pop("max_workers"), not words.pop("no_advice")
    if max_workers is not None:
        from loadtune.api.given import number_of

        max_workers = number_of("--max-workers", int, max_workers, 1)
    options = Options(max_workers=max_workers, freeze=tuple(freeze or ()), advice=advice, **words)
    try:
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out is {out} ({error.strerror}). Name a folder that can be written.") from None
    try:
        return _run_tuned(command, options, None if out is None else Path(out))
    except OSError as error:
        own = "Give a command after --, as in: loadtune exec -- python train.py"
        raise UsageError(f"{command[0]} cannot be run ({error.strerror}). {own}") from None


_UNTIL = "End the script with exit code 0 once the number of workers is found. Batch sizes are not tried."
_FREEZE = "Do not tune this loader: its dataset's class, or FILE:LINE."
EXEC = Parser(
    exec_,
    option("command", help="The command that trains, after --.", value="COMMAND", nargs=REMAINDER),
    option("-o", "--out", help="Write inflight.json, a record of each loader, into it.", value="FOLDER"),
    option("--max-workers", help="Maximum number of workers of one loader.", value="N"),
    option("--freeze", help=_FREEZE, value="NAME", action="append"),
    option("--exact", help="Do not tune loaders with random samples."),
    option("--dry-run", help="Measure and advise; change no loader."),
    option("--until-tuned", help=_UNTIL),
    option("--no-advice", help="Try no changes of your code in a process beside the training."),
    VERBOSE,
    takes="-- COMMAND",
    hint="It sets only the number of workers, while your command trains. `loadtune run` compares batch sizes and "
    "precisions; `loadtune exec --help` lists the options.",
)


def _run_tuned(command: Sequence[str], options: Options, out: Path | None) -> int:
    """Run a command with the hook in all Python processes that it starts, and say at the end what was found.

    Returns its exit code; minus a signal's number where that ended it. Raises OSError where it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="loadtune-", ignore_cleanup_errors=True) as name:
        ours = replace(options, folder=name, launcher=(socket.gethostname(), os.getpid()))
        variables = hooked(os.environ, EXEC_VARIABLE, asdict(ours))
        if (cache := os.environ.get(CACHE_VARIABLE)) is not None:
            variables[CACHE_VARIABLE] = os.path.abspath(cache)  # the script may go to another folder
        code = _run(command, variables)
        with words.ending():
            _tell(Path(name), options, out)
    return code


def _tell(folder: Path, options: Options, out: Path | None) -> None:
    """Say what the processes found, and write it. The first file that cannot be read is named; the others count."""
    found, unread = list[Account](), list[str]()
    for path in sorted(folder.glob("*.json")):
        try:
            found += read_accounts(path)
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
            write_accounts(found, out)
        except OSError as error:
            words.print_line(f"--out {out}: the result could not be written ({error.strerror}).")


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
        "nothing was tuned: no torch DataLoader was iterated, or its process was killed before a decision. Classes "
        "with an iterator of their own (StatefulDataLoader, DALI, WebDataset) are left alone."
    )
