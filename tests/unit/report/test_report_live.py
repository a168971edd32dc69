"""The display of a run: plain lines into a file, a redrawn block on a terminal."""

import io

import pytest

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.telemetry import Progress, Reading
from loadtune.report.live import LiveDisplay, progress_rows

CONFIG = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=1), recipe=Recipe(precision="bf16"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(*progresses: Progress, quiet: bool = False, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    with LiveDisplay(stream, quiet=quiet) as display:
        for progress in progresses:
            display(progress)
    return stream.getvalue()


def test_a_message_is_one_line_as_it_is_figures_alone_are_none_and_quiet_leaves_warnings() -> None:
    long = "[bold]found[/bold] " * 40
    found = shown(Progress(stage="memory", message=long.strip(), left_s=9.0), Progress(stage="memory", left_s=8.0))
    assert found == f"[memory] {long.strip()}\n"
    built, full = (
        Progress(stage="start", message=said, warning=said == "full", left_s=9.0) for said in ("built", "full")
    )
    assert shown(built, full, quiet=True) == "warning: full\n"


def test_the_redrawn_block_says_all_that_is_known_and_keeps_its_height() -> None:
    progress = Progress(
        stage="study",
        message="m",
        trial_number=3,
        num_trials=20,
        config=CONFIG,
        current_samples_per_s=99.0,
        best_samples_per_s=1234.0,
        best_config=CONFIG,
        reading=Reading(gpu_utilization_fraction=0.5, cpu_utilization_fraction=1.0),
        left_s=65.0,
    )
    assert shown(progress) == "[search] m\n"
    assert dict(progress_rows(progress)) == {
        "stage": "search, 3/20 trials, at most 1 min 05 s left",
        "now": "99.0 samples/s  batch 64, 1 worker, not pinned, bf16",
        "best so far": "1,234 samples/s  batch 64, 1 worker, not pinned, bf16",
        "utilization": "GPU 50%, CPU 100%",
    }
    on_cpu = Progress(stage="study", has_gpu=False, left_s=-1.0)
    assert [text for _, text in progress_rows(on_cpu)] == ["search, at most 0 s left", "–", "–", "CPU –"]


def test_a_terminal_gets_both_block_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    found = shown(Progress(stage="study", message="a finding", config=CONFIG, left_s=9.0), stream=Terminal())
    assert "a finding" in found
    assert "best so far" in found
    assert found.index("\x1b[?25l") < found.rindex("\x1b[?25h")  # the cursor comes back
