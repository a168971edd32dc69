"""What trials tell beside a plain loop."""

from claims import Pair, each, ratio_text, table
from peers_records import Timing

from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, Window

CONFIG = TrialConfig(loader=LoaderConfig(batch_size=8, num_workers=2, pin_memory=True), recipe=Recipe())


def pair(loop_per_s: float) -> Pair:
    window = Window(start_s=0.0, seconds=1.0, num_steps=10, num_samples=80)
    trial = Measurement(windows=(window,), first_batch_s=0.1, seconds=2.0)
    return Pair(CONFIG, trial, Timing(samples_per_s=loop_per_s, drift=1.0))


def test_a_ratio_has_the_interval_of_its_rounds() -> None:
    assert ratio_text([1.25]) == "1.25"
    assert ratio_text([0.5, 2.0]).startswith("1.00 (0.00 to ")
    assert ratio_text([1.1, 1.1, 1.1]) == "1.10 (1.10 to 1.10)"


def test_a_row_has_the_mean_ratio() -> None:
    *_, row = table([pair(80.0), pair(80.0)]).splitlines()
    assert row == "| batch 8, 2 workers, pinned, fp32 | 2 | 80 | 80 | 1.00 (1.00 to 1.00) |"


def test_each_pair_has_a_row() -> None:
    assert each([pair(60.0)]).splitlines()[-1] == "| batch 8, 2 workers, pinned, fp32 | 80 | 60 | 1.00 |"
