"""Runs a command with the hook in all Python processes that it starts, as a parent that passes signals on. No torch."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loadtune.inflight import account as told
from loadtune.inflight.options import EXEC_VARIABLE, Options

_INJECTED = str(Path(__file__).parent / "inject")
_FROM_KERNEL = 128  # si_code of a signal that the terminal sends to the whole group: the child has it already
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(command: Sequence[str], options: Options, out: Path | None = None) -> int:
    """The command's exit code; minus a signal's number where that ended it. Says at the end what was found.

    ``out``: a folder for the result and its page. Raises OSError where the command cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="loadtune-") as name:
        folder, before = Path(name), os.environ.get("PYTHONPATH")
        environment = {
            "PYTHONPATH": os.pathsep.join([_INJECTED, *([before] if before else [])]),
            EXEC_VARIABLE: replace(options, folder=name).as_variable(),
        }
        code = _run(command, {**os.environ, **environment})
        found = [each for path in sorted(folder.glob("*.json")) for each in told.read(path)]
        for line in told.summary(found) or [_why_nothing(folder)]:
            print(f"loadtune: {line}", file=sys.stderr, flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        told.write(found, out)
        (out / told.PAGE_FILE).write_text(told.page(found))
    return code


def end_as(code: int) -> None:
    """Exit as the command did: where a signal ended it, by that signal."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else 128 - code)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Signals are taken one after another, with who sent them, instead of interrupting this process."""
    passed = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*passed, signal.SIGCHLD])

    def as_before() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        child = subprocess.Popen(command, env=environment, preexec_fn=as_before)
        while child.poll() is None:
            heard = signal.sigwaitinfo([*passed, signal.SIGCHLD])
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
    if not (folder / "hooked").exists():
        return "no process imported torch's DataLoader, so nothing was tuned."
    return (
        "no torch DataLoader was iterated, so nothing was tuned. Classes with an iterator of their own "
        "(StatefulDataLoader, DALI, WebDataset) are left alone."
    )
