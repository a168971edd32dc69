"""The one thread of the bench that pins batches: whether it is the wall.

In: ``/proc/<bench>/task`` (Linux). Out: its CPU time as cores. PyTorch names it ``pt_data_pin``. It lives as long as
one loader, so it is looked for where none is known; a thread's number may go to another one, so its name is read too.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from loadtune.host.cgroup import read_text
from loadtune.host.sensing import Look, Probe

NAME = "pt_data_pin"


class ThreadUse(NamedTuple):
    name: str
    ticks: int


class PinThread(Probe):
    """CPU used since the last look; None while none runs."""

    figures = ("pin_thread_cores",)

    def __init__(self, pid: Callable[[], int | None], system: Path = Path("/")) -> None:
        self._pid = pid
        self._system = system
        self._file: Path | None = None
        self._last: tuple[float, int] | None = None
        """When it was looked at, and the ticks it had used."""

    def look(self, now_s: float) -> Look:
        if not (self._system / "proc/self").exists():
            return self.all_missing("needs Linux")
        last, ticks = self._last, self._ticks()
        self._last = None if ticks is None else (now_s, ticks)
        if last is None or ticks is None or now_s <= last[0]:
            return {"pin_thread_cores": None}
        return {"pin_thread_cores": (ticks - last[1]) / os.sysconf("SC_CLK_TCK") / (now_s - last[0])}

    def _ticks(self) -> int | None:
        use = None if self._file is None else _read(self._file)
        if use is not None and use.name == NAME:
            return use.ticks
        self._last = None  # whoever it was has ended
        self._file = self._find()
        use = None if self._file is None else _read(self._file)
        return None if use is None else use.ticks

    def _find(self) -> Path | None:
        pid = self._pid()
        threads = () if pid is None else (self._system / f"proc/{pid}/task").glob("[0-9]*")
        try:
            return next((t / "stat" for t in threads if (read_text(t / "comm") or "").strip() == NAME), None)
        except OSError:  # the bench ended meanwhile
            return None


def _read(file: Path) -> ThreadUse | None:
    text = read_text(file)
    return None if text is None else parse_thread_stat(text)


def parse_thread_stat(text: str) -> ThreadUse | None:
    """``/proc/<pid>/task/<tid>/stat`` → name, and CPU time in the kernel's ticks. None: not understood.

    As in proc(5): the name stands in parentheses and may hold some itself; utime and stime are fields 14 and 15.
    """
    head, bracket, tail = text.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < 13 or not (fields[11] + fields[12]).isdigit():
        return None
    return ThreadUse(head.partition("(")[2], int(fields[11]) + int(fields[12]))
