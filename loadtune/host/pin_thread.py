"""The one thread of the bench that pins batches: whether it is the wall.

In: ``/proc/<bench>/task`` (Linux). Out: its CPU time as cores. PyTorch names it ``pt_data_pin``. It lives as long as
one loader, so it is looked for where none is known; a thread's number may go to another one, so its name is read too.
"""

from collections.abc import Callable
from pathlib import Path

from loadtune.host.cgroup import read_text
from loadtune.host.proc_stat import read_proc_stat
from loadtune.host.sensing import Look, Probe

NAME = "pt_data_pin"


class PinThread(Probe):
    """CPU used since the last look; None while none runs."""

    figures = ("pin_thread_cores",)

    def __init__(self, pid: Callable[[], int | None], system: Path = Path("/")) -> None:
        self._pid = pid
        self._system = system
        self._file: Path | None = None
        self._last: tuple[float, float] | None = None
        """When it was looked at, and the CPU seconds it had used."""

    def look(self, now_s: float) -> Look:
        if not (self._system / "proc/self").exists():
            return self.all_missing("needs Linux")
        cpu_s, last = self._cpu_s(), self._last
        self._last = None if cpu_s is None else (now_s, cpu_s)
        if last is None or cpu_s is None or now_s <= last[0]:
            return {"pin_thread_cores": None}
        return {"pin_thread_cores": (cpu_s - last[1]) / (now_s - last[0])}

    def _cpu_s(self) -> float | None:
        stat = None if self._file is None else read_proc_stat(str(self._file))
        if stat is not None and stat.name == NAME:
            return stat.cpu_s
        self._last = None  # whoever it was has ended
        self._file = self._find()
        stat = None if self._file is None else read_proc_stat(str(self._file))
        return None if stat is None else stat.cpu_s

    def _find(self) -> Path | None:
        pid = self._pid()
        threads = () if pid is None else (self._system / f"proc/{pid}/task").glob("[0-9]*")
        try:
            return next((t / "stat" for t in threads if (read_text(t / "comm") or "").strip() == NAME), None)
        except OSError:  # the bench ended meanwhile
            return None
