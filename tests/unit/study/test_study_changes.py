"""What two sets of runs differ in beside their rate, whatever the length of either."""

from loadtune.records import Measurement, Telemetry, Window
from loadtune.study.changes import figure_changes


def run(seconds: float, *, watts: float = 500.0, throttled_share: float = 0.0) -> Measurement:
    """At 1000 samples/s on four cores, of whose time so much is withheld."""
    window = Window(start_s=0.0, seconds=seconds, num_steps=10, num_samples=round(1000 * seconds))
    seen = Telemetry(
        seconds=seconds,
        num_readings=round(12 * seconds),
        gpu_power_w=watts,
        gpu_energy_j=watts * seconds,
        cgroup_cpu_cores=4.0 * (1 - throttled_share),
        cpu_throttled_s=4.0 * throttled_share * seconds,
        num_cpu_throttles=round(10 * throttled_share * seconds),
    )
    return Measurement(windows=(window,), first_batch_s=1.0, seconds=seconds + 2, telemetry=seen)


def changed(before: Measurement, after: Measurement) -> set[str]:
    return {change.name for change in figure_changes([before], [after])}


def test_a_longer_run_alone_is_no_change() -> None:
    assert changed(run(3.0, throttled_share=0.2), run(6.0, throttled_share=0.2)) == set()


def test_more_power_for_the_same_rate_is_fewer_samples_per_joule() -> None:
    assert changed(run(3.0), run(6.0, watts=600.0)) == {"gpu_power_w", "samples_per_joule"}


def test_a_quota_that_holds_back_is_told_as_a_share() -> None:
    found = figure_changes([run(3.0)], [run(6.0, throttled_share=0.25)])
    share = next(change for change in found if change.name == "cpu_throttled_fraction")
    assert (share.before, share.after) == (0.0, 0.25)
