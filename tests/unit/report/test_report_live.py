"""The display of a run: plain lines into a file, one redrawn line on a terminal."""

import io

import pytest

from loadtune.records.measurement import Progress
from loadtune.report.terminal import LiveDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*progresses: Progress, quiet: bool = False, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    with LiveDisplay(stream, quiet=quiet, name="loadtune: ") as display:
        for progress in progresses:
            display(progress)
    return stream.getvalue()


def test_a_log_has_a_line_for_each_stage_and_message_and_quiet_leaves_notes() -> None:
    long = "[bold]found[/bold] " * 40
    told, figures, later = (
        Progress(stage=stage, message=message, left_s=9.0)
        for stage, message in (("calibrate", long.strip()), ("calibrate", None), ("confirm", None))
    )
    first, found, last = shown(told, figures, later).splitlines()
    assert found == f"loadtune: [calibrate] {long.strip()}"
    assert first.startswith("loadtune: [calibrate] ")
    assert first.endswith("at most 9.0 s left")
    assert last.startswith("loadtune: [confirm] confirming")
    built, full = (
        Progress(stage="start", message=said, warning=said == "full", left_s=9.0) for said in ("built", "full")
    )
    assert shown(built, full, quiet=True) == "loadtune: note: full\n"


def test_a_terminal_gets_both_line_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    found = shown(Progress(stage="study", message="a finding", left_s=9.0), stream=Terminal())
    assert "a finding" in found
    assert "searching 1" in found
    assert found.index("\x1b[?25l") < found.rindex("\x1b[?25h")  # the cursor comes back


class Unread(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_went_away_ends_no_process() -> None:
    with pytest.raises(BrokenPipeError):  # which the run notes, and goes on
        shown(Progress(stage="study", left_s=9.0), stream=Unread())
