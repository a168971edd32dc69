"""Who holds a GPU's memory, in words: said where it is worth a word, and no name made up."""

import pytest

from loadtune.records import GpuFacts, GpuProcess
from loadtune.report.wording import held_text, others_text
from loadtune.testing import GIB

TRAINER = GpuProcess(pid=812, name="python", used_bytes=int(12.3 * GIB))
DESKTOP = GpuProcess(pid=9, name="Xorg", used_bytes=30 * 2**20)


def gpu(*processes: GpuProcess, others_bytes: int | None = 0) -> GpuFacts:
    return GpuFacts(
        uuid="GPU-0001",
        index=0,
        name="NVIDIA H200",
        total_bytes=140 * GIB,
        free_bytes=139 * GIB - (others_bytes or 0),
        utilization_fraction=0.0,
        processes=processes,
        driver_bytes=None if others_bytes is None else GIB,
    )


def test_a_process_that_holds_a_visible_part_is_named() -> None:
    assert others_text(gpu(TRAINER, DESKTOP)) == ("python (pid 812), 12.3 GiB",)


@pytest.mark.parametrize(
    ("process", "text"),
    [
        (GpuProcess(pid=812, name=None, used_bytes=GIB), "pid 812, 1.00 GiB"),
        (GpuProcess(pid=812, name="python", used_bytes=None), "python (pid 812)"),
    ],
)
def test_what_the_driver_does_not_say_is_left_out(process: GpuProcess, text: str) -> None:
    assert others_text(gpu(process, others_bytes=GIB)) == (text,)


@pytest.mark.parametrize("others_bytes", [0, None])
def test_processes_of_unknown_size_are_silent_where_no_memory_is_seen_to_be_held(others_bytes: int | None) -> None:
    unknown = GpuProcess(pid=1, name="dwm", used_bytes=None)
    assert held_text(gpu(unknown, others_bytes=others_bytes)) is None


def test_memory_that_nobody_is_named_for_is_told_all_the_same() -> None:
    assert held_text(gpu(others_bytes=3 * GIB)) == "3.00 GiB held by processes that the driver does not name"
