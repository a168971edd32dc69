"""What trials tell beside a plain loop: the ratio, and which clock told what."""

import pytest
from claims import Pair, each, ratio_text, table
from peers_records import Timing

from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, Window

CONFIG = TrialConfig(loader=LoaderConfig(batch_size=8, num_workers=2, pin_memory=True), recipe=Recipe())


def pair(loop_per_s: float) -> Pair:
    """80 samples/s were trained on, out of a stock of which 3 of 10 batches were not made anew."""
    window = Window(
        start_s=0.0,
        seconds=1.0,
        num_steps=10,
        num_samples=80,
        queue_start=20.0,
        queue_end=20.0,
        num_pinned=7,
        least_unpinned=2,
    )
    trial = Measurement(windows=(window,), first_batch_s=0.1, seconds=2.0)
    return Pair(CONFIG, trial, Timing(samples_per_s=loop_per_s, drift=1.0))


def test_a_ratio_has_the_interval_of_its_rounds() -> None:
    assert ratio_text([1.25]) == "1.25"
    assert ratio_text([0.5, 2.0]).startswith("1.00 (0.00 to ")
    assert ratio_text([1.1, 1.1, 1.1]) == "1.10 (1.10 to 1.10)"


def test_a_row_has_each_clock_beside_the_loop() -> None:
    *_, row = table([pair(56.0), pair(56.0)]).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["batch 8, 2 workers, pinned, fp32", "2", "56", "56"]
    assert [float(cell.split()[0]) for cell in cells[4:]] == [1.0, pytest.approx(1.43), pytest.approx(1.43)]


def test_each_pair_says_what_stood_before_the_thread() -> None:
    assert each([pair(60.0)]).splitlines()[-1] == "| batch 8, 2 workers, pinned, fp32 | 56 | 80 | 80 | 2 | 60 | 1.00 |"
