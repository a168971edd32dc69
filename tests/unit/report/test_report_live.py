"""The display of a run: plain lines into a file, one redrawn line on a terminal."""

import io

import pytest

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.telemetry import Progress
from loadtune.report.live import LiveDisplay, progress_line

CONFIG = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=1), recipe=Recipe(precision="bf16"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*progresses: Progress, quiet: bool = False, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    with LiveDisplay(stream, quiet=quiet, name="loadtune: ") as display:
        for progress in progresses:
            display(progress)
    return stream.getvalue()


def test_a_log_has_a_line_for_each_stage_and_message_and_quiet_leaves_warnings() -> None:
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
    assert shown(built, full, quiet=True) == "loadtune: warning: full\n"


def test_the_line_says_what_is_done_the_best_so_far_and_the_time_left_as_it_is_known() -> None:
    progress = Progress(
        stage="study",
        number=3,
        num_trials=12,
        config=CONFIG,
        current_samples_per_s=99.0,
        best_samples_per_s=3441.0,
        best_config=CONFIG,
        left_s=165.0,
        expected_s=61.0,
    )
    what = "batch 64, 1 worker, not pinned, bf16"
    best = f" · best so far 3,441 samples/s ({what}) · about 1 min 10 s left"
    assert progress_line(progress) == f"searching 3 of ≤12{best}"
    assert progress_line(progress, 200) == f"searching 3 of ≤12 · now 99.0 samples/s ({what}){best}"
    assert progress_line(progress, 100) == progress_line(progress)
    assert progress_line(Progress(stage="study", left_s=65.0)) == "searching 1 · at most 1 min 05 s left"


def test_a_terminal_gets_both_line_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    found = shown(Progress(stage="study", message="a finding", config=CONFIG, left_s=9.0), stream=Terminal())
    assert "a finding" in found
    assert "searching 1" in found
    assert found.index("\x1b[?25l") < found.rindex("\x1b[?25h")  # the cursor comes back


class Unread(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_went_away_ends_no_process() -> None:
    with pytest.raises(BrokenPipeError):  # which the run notes, and goes on
        shown(Progress(stage="study", left_s=9.0), stream=Unread())
