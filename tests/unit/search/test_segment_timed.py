"""One trial over a bench that only streams: what of it counts."""

from dataclasses import replace

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import Measurement, TrainingRun, Window
from loadtune.seams import Watch
from loadtune.search.segment import Segment, run_trial
from loadtune.testing import FakeBench, FakeSensor

CONFIG = TrialConfig(loader=LoaderConfig(batch_size=8), recipe=Recipe(precision="fp16"))
REAL_PER_S, SKIPPED_PER_S = 100, 160


class Skipping(FakeBench):
    """Skips a step in each of the first windows, which are faster for it."""

    num_skipping = 0

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun:
        windows: list[Window] = []
        while not windows or watch(windows[-1]):
            skips = len(windows) < self.num_skipping
            per_s = SKIPPED_PER_S if skips else REAL_PER_S
            window = Window(start_s=self.clock.now(), seconds=1.0, num_steps=10, num_samples=per_s)
            windows.append(replace(window, num_skipped_steps=int(skips)))
            self.clock.spend(1.0)
        return TrainingRun(windows=tuple(windows), first_batch_s=0.1, num_skipped_steps=self.num_skipping)


def measured(num_skipping: int) -> Measurement:
    bench = Skipping()
    bench.num_skipping = num_skipping
    segment = Segment(CONFIG.loader, 5.0)
    found = run_trial(bench, FakeSensor(bench.clock), bench.clock, CONFIG, segment)
    assert isinstance(found, Measurement)
    return found


def test_windows_with_skipped_steps_are_no_throughput() -> None:
    found = measured(num_skipping=3)
    assert found.samples_per_s == REAL_PER_S
    assert not any(window.num_skipped_steps for window in found.windows)
    assert found.num_skipped_steps == 3


def test_a_run_that_never_stops_skipping_is_measured_as_it_is() -> None:
    found = measured(num_skipping=10_000)
    assert found.windows[0].start_s == Skipping().clock.now() + 11.0
    assert found.noisy
    assert all(window.num_skipped_steps for window in found.windows)
