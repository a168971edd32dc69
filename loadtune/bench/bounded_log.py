"""The log that a training process and its workers write, kept small: its beginning and its newest part.

They write to the file themselves, each line appended by the kernel, so nobody waits for a reader, and what was written
is there whoever is killed. The controller cuts the file from time to time, while they go on writing. What they write in
the moment of a cut may be lost, as is what was cut.
"""

import contextlib
from pathlib import Path

MAX_BYTES = 1 << 20
"""The log is cut when it is longer; between two looks it may grow beyond that."""

_HEAD_BYTES, _TAIL_BYTES = MAX_BYTES // 4, MAX_BYTES // 2
LEFT_OUT = b"[loadtune: lines were left out here; this log keeps its beginning and its newest part]\n"
_TAIL_READ_BYTES = 131_072
TAIL_LINES = 40


class BoundedLog:
    """The part of a log that one process writes, from where the file ended when this was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._start = self.size()

    def size(self) -> int:
        """Bytes in the file now."""
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def tail(self, num_lines: int = TAIL_LINES) -> str:
        """The last lines of this part."""
        try:
            with self._path.open("rb") as log:
                log.seek(max(self._start, self.size() - _TAIL_READ_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-num_lines:])

    def cut(self) -> None:
        """Leave lines out where the file is too long."""
        size = self.size()
        if size > MAX_BYTES:
            with contextlib.suppress(OSError):  # a full disk: the log is not what a run ends for
                self._cut(size)

    def _cut(self, size: int) -> None:
        with self._path.open("rb") as log:
            head = _begin(log.read(_HEAD_BYTES))
            log.seek(size - _TAIL_BYTES)
            read = log.read()  # all that was written until now
        tail = _end(read)
        with self._path.open("ab") as log:
            log.truncate(len(head))
            log.write(LEFT_OUT + tail)
        cut_to, moved_to = size - _TAIL_BYTES + len(read) - len(tail), len(head) + len(LEFT_OUT)
        self._start = min(self._start, moved_to) if self._start < cut_to else self._start - cut_to + moved_to


def _begin(text: bytes) -> bytes:
    """Its whole lines, up to where an earlier cut begins."""
    return text[: text.rfind(b"\n") + 1].partition(LEFT_OUT)[0]


def _end(text: bytes) -> bytes:
    """Its whole lines; all of it where it has none, as a progress bar writes."""
    _, newline, rest = text.partition(b"\n")
    return rest if newline else text
