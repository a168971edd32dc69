"""The display of a run: plain lines into a file, a redrawn block on a terminal."""

import io

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.telemetry import Progress, Reading
from loadtune.report.live import LiveDisplay, plain_line, progress_rows

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


def test_a_message_is_one_line_and_figures_alone_are_none() -> None:
    long = "found " * 40
    found = shown(Progress(stage="memory", message=long.strip(), left_s=9.0), Progress(stage="memory", left_s=8.0))
    assert found == f"[memory] {long.strip()}\n"


def test_brackets_of_a_message_stay() -> None:
    assert "[bold]a[/bold]" in shown(Progress(stage="start", message="[bold]a[/bold]", left_s=1.0))


def test_quiet_shows_warnings_only() -> None:
    found = shown(
        Progress(stage="start", message="built", left_s=9.0),
        Progress(stage="start", message="little memory", warning=True, left_s=9.0),
        quiet=True,
    )
    assert found == "warning: little memory\n"


def test_the_number_of_trials_is_in_the_redrawn_block_and_not_in_each_line() -> None:
    progress = Progress(stage="study", message="m", trial_number=3, num_trials=20, left_s=65.0)
    assert plain_line(progress) == "[search] m"
    assert dict(progress_rows(progress))["stage"] == "search, 3/20 trials, at most 1 min 05 s left"


def test_the_redrawn_block_says_all_that_is_known() -> None:
    progress = Progress(
        stage="study",
        config=CONFIG,
        current_samples_per_s=99.0,
        best_samples_per_s=1234.0,
        best_config=CONFIG,
        reading=Reading(at_s=0.0, gpu_utilization_fraction=0.5, cpu_utilization_fraction=1.0),
        left_s=65.0,
    )
    assert dict(progress_rows(progress)) == {
        "stage": "search, at most 1 min 05 s left",
        "now": "99.0 samples/s  batch 64, 1 worker, not pinned, bf16",
        "best so far": "1,234 samples/s  batch 64, 1 worker, not pinned, bf16",
        "utilization": "GPU 50%, CPU 100%",
    }


def test_samples_per_joule_stand_behind_the_rate_where_they_are_looked_for() -> None:
    progress = Progress(
        stage="study", best_samples_per_s=1234.0, best_samples_per_joule=7.4, best_config=CONFIG, left_s=1.0
    )
    best = dict(progress_rows(progress))["best so far"]
    assert best == "1,234 samples/s, 7.40 samples/J  batch 64, 1 worker, not pinned, bf16"


def test_without_a_gpu_none_is_spoken_of() -> None:
    reading = Reading(at_s=0.0, cpu_utilization_fraction=0.5)
    on_cpu = Progress(stage="study", reading=reading, has_gpu=False, left_s=1.0)
    assert dict(progress_rows(on_cpu))["utilization"] == "CPU 50%"
    assert dict(progress_rows(Progress(stage="study", left_s=1.0)))["utilization"] == "GPU –, CPU –"


def test_the_redrawn_block_keeps_its_height_when_little_is_known() -> None:
    rows = dict(progress_rows(Progress(stage="start", left_s=-1.0)))
    assert len(rows) == 4
    assert rows["now"] == "–"


def test_a_terminal_gets_both_block_and_message(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("TERM", "xterm")
    found = shown(Progress(stage="study", message="a finding", config=CONFIG, left_s=9.0), stream=Terminal())
    assert "a finding" in found
    assert "best so far" in found
    assert found.index("\x1b[?25l") < found.rindex("\x1b[?25h")  # the cursor comes back
