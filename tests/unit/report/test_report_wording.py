"""Who holds a GPU's memory, in words: said where it is worth a word, and no name made up."""

import dataclasses

import pytest

from loadtune.records import GpuFacts, GpuProcess, Hindrance, Verdict
from loadtune.report.view import banner
from loadtune.report.wording import held_text, others_text, verdict_lines
from loadtune.testing import GIB, fake_host

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


def test_the_banner_says_who_holds_a_gpu() -> None:
    host = dataclasses.replace(fake_host(), gpus=(gpu(TRAINER, others_bytes=13 * GIB),))
    rows = banner(host).rows
    assert rows[[name for name, _ in rows].index("GPU 0") + 2] == ("", "held by python (pid 812), 12.3 GiB")
    assert not any(name == "" for name, _ in banner(fake_host()).rows)


def test_what_else_holds_it_back_is_said_where_it_fits() -> None:
    copies = Hindrance(bound_by="transfer", evidence="", gain_at_most=1.33)
    brief, long = (Verdict(bound_by="pinning", evidence="x" * n, advice="", also=(copies,)) for n in (100, 110))
    assert verdict_lines(brief)[1] == f"{brief.evidence} Also: the copies to the device (1.33×)."
    assert verdict_lines(long)[1] == long.evidence


@pytest.mark.parametrize(
    ("bound_by", "gain", "said"),
    [
        ("compute", 33.4, "Bound by the device's own compute: the rest keeps up to 33×. AU 98%."),
        ("compute", 33400.0, "Bound by the device's own compute. AU 98%."),
        ("transfer", 1.23, "Bound by the copies to the device: at most 1.23× to gain. AU 98%."),
        ("unclear", 4e9, "Bound by nothing that these figures show: over 1,000× to gain. AU 98%."),
        ("unclear", 1000.0, "Bound by nothing that these figures show: at most 1,000× to gain. AU 98%."),
    ],
)
def test_what_there_is_to_gain_is_what_a_user_can_have(bound_by, gain, said):
    verdict = Verdict(bound_by=bound_by, evidence="", advice="", gain_at_most=gain, accelerator_utilization=0.98)
    assert verdict_lines(verdict) == (said,)
