"""What the page claims, as data: only what was confirmed, and no more than the interval allows."""

import dataclasses
from pathlib import Path

import pytest

from loadtune.records.facts import Device
from loadtune.records.result import TuningResult, Winner
from loadtune.report.machine import banner
from loadtune.report.page.view import Page, page_view
from loadtune.report.store import load_result
from loadtune.testing import GIB, fake_host


@pytest.fixture
def result() -> TuningResult:
    return load_result(Path(__file__).parents[2] / "golden" / "result.json")


def row(view: Page, name: str) -> tuple[str, ...]:
    assert view.figures is not None
    return next(cells[1:] for cells in view.figures.rows if cells[0] == name)


def words(view: Page) -> str:
    return "\n".join(line for section in view.sections for line in section.lines)


def with_best(result: TuningResult, **changes: object) -> TuningResult:
    assert result.best is not None
    return dataclasses.replace(result, best=dataclasses.replace(result.best, **changes))  # type: ignore[arg-type]


def test_without_a_batch_size_of_yours_there_are_two_columns(result: TuningResult) -> None:
    view = page_view(dataclasses.replace(result, best_at_your_batch=None))
    assert view.figures is not None
    assert view.figures.columns == ("", "best", "baseline")


def test_yours_that_could_not_be_measured_shows_no_figures(result: TuningResult) -> None:
    view = page_view(dataclasses.replace(result, finalists=result.finalists[:2]))
    assert row(view, "samples/s (95% CI)")[-1] == "not measured"
    assert row(view, "GPU utilization")[-1] == "–"


def test_a_changed_batch_size_comes_with_its_warning(result: TuningResult) -> None:
    assert "learning rate" in words(page_view(result))
    same = dataclasses.replace(result, best=result.best_at_your_batch)
    assert "learning rate" not in words(page_view(same))


def test_a_run_cut_short_claims_nothing(result: TuningResult) -> None:
    cut = dataclasses.replace(result, cut_short="interrupted", best=None, best_at_your_batch=None, finalists=())
    view = page_view(cut)
    assert view.figures is None
    assert view.code == ()
    assert view.warning == "Cut short: interrupted. Nothing was confirmed."
    (line,) = view.sections[0].lines
    assert "4,210 samples/s with batch 256, 16 workers, pinned, fp16, channels_last, fused optimizer" in line
    assert "×" not in line


@pytest.mark.parametrize(("whole", "scope"), [(True, "confirmation was complete"), (False, "fewer runs than planned")])
def test_a_run_cut_short_says_what_stands(result: TuningResult, whole: bool, scope: str) -> None:
    cut = dataclasses.replace(result, cut_short="interrupted", confirmed_whole=whole)
    assert scope in (page_view(cut).warning or "")


def test_a_run_cut_short_before_any_trial_says_so(result: TuningResult) -> None:
    cut = dataclasses.replace(result, cut_short="interrupted", best=None, best_at_your_batch=None, trials=())
    assert "No trial was measured" in words(page_view(cut))


def test_on_cpu_there_is_no_gpu_row(result: TuningResult) -> None:
    view = page_view(dataclasses.replace(result, device=Device(kind="cpu", name="Xeon")))
    assert view.figures is not None
    assert not any("GPU" in cells[0] for cells in view.figures.rows)
    assert row(view, "peak RAM")[0] == "8.38 GiB"


def test_code_that_differs_at_your_batch_is_shown_too(result: TuningResult) -> None:
    titles = [block.title for block in page_view(result).code]
    assert titles == ["Loader", "Training step", "Loader at your batch size"]
    best: Winner | None = result.best
    assert [block.title for block in page_view(dataclasses.replace(result, best_at_your_batch=best)).code] == titles[:2]


def test_the_banner_shows_the_gpus_hardware_and_memory_where_they_are_known(result: TuningResult) -> None:
    gpu = dataclasses.replace(
        fake_host().gpus[0], driver_bytes=GIB // 2, num_multiprocessors=132, compute_capability="9.0"
    )
    rows = banner(dataclasses.replace(fake_host(), gpus=(gpu,)))
    at = [name for name, _ in rows].index("GPU 0")
    assert rows[at + 1 : at + 3] == (
        ("", "132 multiprocessors, compute capability 9.0"),
        ("", "memory: 512 MiB allocated, 512 MiB reserved by the driver"),
    )
    assert not any(name == "" for name, _ in banner(fake_host()))


def test_the_banner_marks_the_chosen_device(result: TuningResult) -> None:
    rows = dict(banner(result.host, result.device))
    assert rows["GPU 0"].endswith("← chosen")
    assert "chosen" not in rows["CPU"]
    on_cpu = dict(banner(dataclasses.replace(result.host, gpus=()), Device(kind="cpu", name="Xeon")))
    assert on_cpu["GPU"] == "none"
    assert on_cpu["CPU"].endswith("← chosen")
