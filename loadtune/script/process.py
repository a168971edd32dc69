"""The process of the user's script from the outside. Needs no torch."""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from loadtune.errors import UsageError
from loadtune.records.facts import Device
from loadtune.script import janitor, protect
from loadtune.script.bench import RUN_VARIABLE
from loadtune.script.launch import below
from loadtune.script.protect import Protection
from loadtune.training.process import BoundedLog, TrainingProcess, environment_of
from loadtune.training.protocol import Message

_INJECTED = Path(__file__).parents[1] / "inflight" / "inject"
_OFF = {"LOADTUNE_TUNING": "1", "WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": ""}
"""What the script is told: it is tuned, and nothing of it is logged elsewhere."""


class ScriptProcess(TrainingProcess):
    """A running script. It connects once a loader of it is iterated, and answers once one trains."""

    def __init__(
        self, command: Sequence[str], protection: Protection, device: Device, log_path: Path, scratch: Path
    ) -> None:
        """``protection``: what keeps the script from changing what existed."""
        self.log, log = BoundedLog(log_path), log_path.open("ab")
        self._waiting, self._connections = list[object](), list[Connection]()
        self._server = socket.socket(socket.AF_UNIX)
        address = scratch / f"script-{os.urandom(4).hex()}"
        self._server.bind(str(address))
        self._server.listen()
        environment = environment_of(device, scratch)
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{_INJECTED}{os.pathsep}{known}" if known else str(_INJECTED)
        given: dict[str, object] = {"folder": str(scratch), "socket": str(address)}
        if protection.way == "audit":
            caches = [each for each in protect.caches_of(os.environ) if not below(os.getcwd(), each)]
            given["audit"] = {"began_s": protection.began_s, "free": [str(scratch), *caches]}
        environment |= _OFF | {RUN_VARIABLE: json.dumps(given)}
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", janitor.__file__, str(scratch)], stdin=subprocess.PIPE, start_new_session=True
        )
        protect.forget(scratch)
        argv = protect.command(protection, command, Path.cwd(), scratch, keep=[scratch])
        try:
            with log:
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
        except OSError as error:
            self._close_all()
            raise UsageError(f"{command[0]} cannot be run ({error.strerror}). Give a command after --.") from None

    def send(self, message: object) -> None:
        if self._connections:
            super().send(message)
        else:
            self._waiting.append(message)

    def receive(self, timeout_s: float) -> Message | None:
        wanted: list[Any] = [self._server, *self._connections[:1]]
        ready, _, _ = select.select(wanted, (), (), timeout_s)
        if self._server in ready:
            taken = Connection(self._server.accept()[0].detach())
            self._connections.append(taken)  # the first, and a lifeline that nobody speaks on
            if self._connections == [taken]:
                self.connection = taken
                while self._waiting:
                    super().send(self._waiting.pop(0))
        return super().receive(0.0) if self._connections and self._connections[0] in ready else None

    def loading(self) -> tuple[()]:
        return ()

    def _close_all(self) -> None:
        self._janitor.communicate(b"the folder is wanted")
        self._server.close()
        for each in self._connections:
            each.close()
