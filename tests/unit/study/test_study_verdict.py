"""What is said to hold a job back: each rule over plain numbers, those of one H200 among them."""

from dataclasses import replace
from typing import Any

import pytest

from loadtune.records import Verdict
from loadtune.study.verdict import judge
from loadtune.study.walls import Evidence

# ResNet-50 on images of 602 KB, fp16, channels_last, a batch of 256; 16 cores.
H200 = Evidence(
    compute_per_s=5879.0,
    transfer_per_s=90_000.0,
    one_process_per_s=390.0,
    num_usable_cores=16,
    most_workers_tried=16,
    most_workers_in_memory=16,
    num_memory_failures=0,
    sample_bytes=602_120,
    uint8_bytes=150_536,
    half_bytes=301_064,
    epoch_s=300.0,
    restart_s=0.6,
    on_gpu=True,
    pinned=True,
    persistent=True,
)
UINT8 = replace(
    H200, trained_per_s=5650.0, workers_per_s=9000.0, pinned_per_s=8800.0, wait_fraction=0.02, num_workers=16
)
NO_WORKERS = replace(H200, trained_per_s=366.0, workers_per_s=390.0, wait_fraction=0.94, num_workers=0, pinned=False)
EIGHT = replace(
    H200, trained_per_s=2900.0, workers_per_s=2985.0, pinned_per_s=2960.0, wait_fraction=0.45, num_workers=8
)
PINNED = replace(
    H200, trained_per_s=3900.0, workers_per_s=4763.0, pinned_per_s=3800.0, wait_fraction=0.05, num_workers=16
)
PAGEABLE = replace(
    H200,
    trained_per_s=2440.0,
    workers_per_s=4763.0,
    transfer_per_s=4200.0,
    wait_fraction=0.05,
    num_workers=16,
    pinned=False,
)
# The pinned loader alone has room, and is no slower than the unpinned; no batch is waited for.
STRETCHED = replace(
    H200,
    trained_per_s=3390.0,
    workers_per_s=4393.0,
    pinned_per_s=4108.0,
    wait_fraction=0.01,
    num_workers=12,
    pin_thread_cores=0.97,
    compute_fraction=0.94,
    copy_fraction=0.05,
    idle_fraction=0.01,
)
# Eight unpinned workers far below what the device takes: what it is that holds them up is for each test to say.
BEHIND = replace(H200, trained_per_s=1450.0, workers_per_s=1500.0, wait_fraction=0.7, num_workers=8, pinned=False)


@pytest.mark.parametrize(
    ("evidence", "bound_by", "gain"),
    [
        pytest.param(UINT8, "compute", 9000 / 5650, id="uint8-compute"),
        pytest.param(NO_WORKERS, "workers", 1 / (1 / 5879 + 1 / 90_000) / 366, id="no-workers"),
        pytest.param(EIGHT, "workers", 1 / (1 / 5879 + 1 / 90_000) / 2900, id="8-workers"),
        pytest.param(PINNED, "pinning", 4763 / 3900, id="16-workers-pinned"),
        pytest.param(STRETCHED, "pinning", 4393 / 3390, id="steps-slowed-by-pinning"),
        pytest.param(PAGEABLE, "transfer", 4763 / 2440, id="16-workers-unpinned"),
        pytest.param(
            replace(BEHIND, worker_cores=0.12, disk_read_bytes_per_s=160e6, disk_idle_fraction=0.4),
            "storage",
            1 / (1 / 5879 + 1 / 90_000) / 1450,
            id="storage",
        ),
        pytest.param(replace(BEHIND, slowest_worker_ratio=2.0), "slow_worker", 2.0, id="slow-worker"),
        pytest.param(
            replace(BEHIND, late_batch_ratio=9.0, late_wait_fraction=0.8), "slow_samples", 1 / 0.3, id="slow-samples"
        ),
        pytest.param(
            replace(BEHIND, most_workers_in_memory=8), "host_memory", 1 / (1 / 5879 + 1 / 90_000) / 1450, id="no-room"
        ),
        pytest.param(
            replace(BEHIND, num_memory_failures=2), "host_memory", 1 / (1 / 5879 + 1 / 90_000) / 1450, id="bus-errors"
        ),
        pytest.param(
            replace(BEHIND, throttled_fraction=0.3), "cores", 1 / (1 / 5879 + 1 / 90_000) / 1450, id="throttled"
        ),
        pytest.param(
            replace(PINNED, workers_per_s=3950.0, pinned_per_s=3940.0, epoch_s=4.0, restart_s=1.8, persistent=False),
            "startup",
            5879 / 3900,
            id="short-epochs",
        ),
    ],
)
def test_what_bounds_it_and_what_there_is_to_gain_at_most(evidence: Evidence, bound_by: str, gain: float) -> None:
    found = judge(evidence)
    assert found.bound_by == bound_by
    assert found.gain_at_most == pytest.approx(gain)
    assert evidence.trained_per_s is not None
    assert evidence.compute_per_s is not None
    assert found.accelerator_utilization == pytest.approx(evidence.trained_per_s / evidence.compute_per_s)


@pytest.mark.parametrize(("wait", "bound_by"), [(0.12, "workers"), (0.05, "unclear")])
def test_little_waiting_is_named_where_it_is_most_of_what_is_missing(wait: float, bound_by: str) -> None:
    """At 86% of the compute-only rate."""
    near = replace(EIGHT, trained_per_s=5056.0, workers_per_s=5200.0, pinned_per_s=5180.0, wait_fraction=wait)
    assert near.utilization == pytest.approx(0.86, abs=0.005)
    assert judge(near).bound_by == bound_by


def test_what_is_made_in_turn_is_not_uneven() -> None:
    """Two cores: alone 1,674/s without workers, the device 307/s, one after the other 267/s."""
    turn = replace(NO_WORKERS, compute_per_s=307.0, workers_per_s=1674.0, trained_per_s=267.0, wait_fraction=0.16)
    found = judge(replace(turn, on_gpu=False, transfer_per_s=None))
    assert found.bound_by == "workers"
    assert "16% of the time" in found.evidence
    assert "1,674 samples/s" in found.evidence
    assert found.gain_at_most == pytest.approx(307 / 267)


def test_a_wait_in_each_step_is_said_where_launches_come_late() -> None:
    waiting, not_waiting = (judge(replace(STRETCHED, waits_each_step=waits)) for waits in (True, False))
    said = " GradScaler waits for each step, so late launches show."
    assert waiting.evidence == not_waiting.evidence + said


@pytest.mark.parametrize(
    ("changed", "was", "now"),
    [
        pytest.param(replace(UINT8, trained_per_s=5200.0), "compute", "unclear", id="88%-of-compute-is-not-full"),
        pytest.param(replace(EIGHT, wait_fraction=0.14), "workers", "unclear", id="no-wait-no-worker-at-fault"),
        pytest.param(replace(PINNED, workers_per_s=4100.0), "pinning", "unclear", id="pinned-as-fast-as-not-pinned"),
        pytest.param(replace(PINNED, pinned_per_s=4300.0), "pinning", "unclear", id="pinning-has-room"),
        pytest.param(replace(STRETCHED, pin_thread_cores=0.8), "stretched", "unclear", id="a-pin-thread-that-rests"),
        pytest.param(replace(STRETCHED, compute_fraction=0.65), "stretched", "unclear", id="steps-as-fast-as-alone"),
        pytest.param(
            replace(STRETCHED, copy_fraction=0.25, compute_fraction=0.74), "stretched", "transfer", id="slow-copies"
        ),
        pytest.param(replace(PINNED, copy_fraction=0.2), "pinning", "transfer", id="copies-explain-it"),
        pytest.param(replace(PAGEABLE, on_gpu=False), "transfer", "unclear", id="no-way-to-a-cpu"),
        pytest.param(replace(PAGEABLE, transfer_per_s=25_000.0), "transfer", "unclear", id="copies-of-a-tenth"),
        pytest.param(
            replace(PINNED, transfer_per_s=None, pinned_per_s=4300.0), "pinning", "transfer", id="copies-untimed"
        ),
        pytest.param(replace(EIGHT, pinned_per_s=None), "workers", "loader", id="pinning-not-timed-apart"),
        pytest.param(replace(BEHIND, workers_per_s=1750.0), "workers", "loader", id="alone-it-is-fast-enough"),
        pytest.param(replace(EIGHT, pin_thread_cores=0.95), "workers", "pinning", id="pin-thread-full"),
        pytest.param(
            replace(EIGHT, unpinned_batches=1.2, ready_batches=0.1),
            "workers",
            "pinning",
            id="queue-before-the-pin-thread",
        ),
        pytest.param(
            replace(EIGHT, unpinned_batches=6.0, ready_batches=8.0, pinning_seldom_rests=True),
            "workers",
            "pinning",
            id="pin-thread-behind-a-stock",
        ),
    ],
)
def test_where_one_verdict_gives_way_to_another(changed: Evidence, was: str, now: str) -> None:
    whole = {
        "compute": UINT8,
        "workers": EIGHT if changed.pinned else BEHIND,
        "pinning": PINNED,
        "stretched": STRETCHED,
        "transfer": PAGEABLE,
    }
    bound = "pinning" if was == "stretched" else was
    assert (judge(whole[was]).bound_by, judge(changed).bound_by) == (bound, now)


# Batches of an MLP's vectors: the training process maps and copies what 16 workers made, one batch after the other.
TAKEN = replace(
    H200,
    trained_per_s=850_000.0,
    compute_per_s=5.4e6,
    transfer_per_s=53e6,
    workers_per_s=731_000.0,
    wait_fraction=0.86,
    num_workers=16,
    pinned=False,
    worker_cores=0.4,
    main_cores=0.97,
    taking_seldom_rests=True,
    sample_bytes=1032,
    uint8_bytes=None,
    half_bytes=520,
)


def test_a_training_process_that_takes_made_batches_over_does_not_wait_for_workers() -> None:
    found = judge(TAKEN)
    assert found.bound_by == "loader"
    assert "86% of the time" in found.evidence
    assert "0.97 core" in found.evidence
    assert found.gain_at_most == pytest.approx(1 / (1 / 5.4e6 + 1 / 53e6) / 850_000.0), "the next wall, not all waiting"
    assert judge(replace(TAKEN, compute_per_s=None)).gain_at_most == pytest.approx(1 / 0.14)
    assert "More workers cannot fix it" in found.advice
    assert "pin_memory=True" in found.advice
    assert "pin_memory" not in judge(replace(TAKEN, pinned=True)).advice
    assert "pin_memory" not in judge(replace(TAKEN, on_gpu=False)).advice


@pytest.mark.parametrize(
    ("changed", "bound_by"),
    [
        (replace(TAKEN, taking_seldom_rests=False), "workers"),
        (replace(TAKEN, taking_seldom_rests=None), "workers"),
        (replace(TAKEN, main_cores=0.2), "workers"),  # counted by their workers, and not sent yet
        (replace(TAKEN, main_cores=None), "workers"),
        (replace(TAKEN, late_wait_fraction=0.6, late_batch_ratio=6.0), "slow_samples"),
        (replace(TAKEN, num_memory_failures=1, num_workers=12), "loader"),
        (replace(TAKEN, throttled_fraction=0.3), "cores"),
        (replace(TAKEN, slowest_worker_ratio=2.0, slowest_wait_fraction=0.9), "slow_worker"),
        (replace(TAKEN, disk_read_bytes_per_s=160e6), "loader"),  # workers rest because their queue is full
        (replace(TAKEN, wait_fraction=0.02), "unclear"),
    ],
)
def test_what_taking_over_explains_and_what_it_does_not(changed: Evidence, bound_by: str) -> None:
    assert judge(changed).bound_by == bound_by


def test_steps_that_slow_down_are_said_with_and_without_a_cause() -> None:
    """0.94 of the time at 3,390/s, where 5,879/s are computed alone."""
    assert "1.6 times as long as alone" in judge(STRETCHED).evidence
    unexplained = judge(replace(STRETCHED, pin_thread_cores=None))
    assert unexplained.bound_by == "unclear"
    assert "1.6 times as long as without a loader" in unexplained.evidence
    assert "nothing that was timed" not in unexplained.evidence


@pytest.mark.parametrize(
    "nearly",
    [
        pytest.param({"worker_cores": 0.12, "disk_read_bytes_per_s": 2e6}, id="page-cache"),
        pytest.param({"worker_cores": 0.12, "disk_read_bytes_per_s": 6e4, "sample_bytes": 776}, id="stray-reads"),
        pytest.param(
            {"worker_cores": 0.12, "disk_read_bytes_per_s": 160e6, "disk_idle_fraction": 0.5}, id="read-in-a-burst"
        ),
        pytest.param({"worker_cores": 0.95, "disk_read_bytes_per_s": 160e6}, id="busy-and-reading"),
        pytest.param({"disk_read_bytes_per_s": 160e6}, id="workers-cpu-not-read"),
        pytest.param({"slowest_worker_ratio": 1.3, "slowest_wait_fraction": 0.9}, id="alike-but-in-a-burst"),
        pytest.param({"most_workers_in_memory": 12}, id="room-for-more"),
        pytest.param({"late_batch_ratio": 9.0, "late_wait_fraction": 0.2}, id="late-but-seldom"),
        pytest.param({"unpinned_batches": 1.2, "ready_batches": 3.0}, id="a-queue-on-both-sides"),
        pytest.param({"throttled_fraction": 0.05}, id="hardly-throttled"),
    ],
)
def test_a_cause_that_is_not_shown_leaves_the_workers(nearly: dict[str, float]) -> None:
    assert judge(replace(BEHIND, **nearly)).bound_by == "workers"


def test_workers_made_what_was_trained_on_whatever_they_make_alone() -> None:
    """Seen on an H200: 2,831/s alone, 3,467/s in training."""
    slow_alone = replace(BEHIND, trained_per_s=3000.0, workers_per_s=2400.0, wait_fraction=0.4, most_workers_tried=8)
    found = judge(slow_alone)
    assert "8 workers make 3,000 samples/s" in found.evidence
    assert "About 16 workers would do" in found.advice


def test_workers_that_use_all_cores_are_no_lack_of_memory() -> None:
    full = replace(BEHIND, num_workers=16, most_workers_in_memory=16)
    assert judge(full).bound_by == "workers"


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        pytest.param(UINT8, "More workers cannot fix it", id="compute"),
        pytest.param(PINNED, "More workers cannot fix it", id="pinning"),
        pytest.param(PAGEABLE, "More workers cannot fix it", id="transfer"),
        pytest.param(replace(BEHIND, slowest_worker_ratio=2.0), "More workers cannot fix it", id="slow-worker"),
        pytest.param(replace(BEHIND, most_workers_in_memory=8), "More workers cannot fix it", id="host-memory"),
        pytest.param(replace(BEHIND, throttled_fraction=0.3), "More workers cannot fix it", id="throttled"),
        pytest.param(
            replace(BEHIND, num_workers=16, worker_cores=0.9), "More workers cannot fix it", id="as-many-as-cores"
        ),
        pytest.param(EIGHT, "More workers did not pay when tried", id="more-were-tried"),
        pytest.param(replace(EIGHT, most_workers_tried=8), "About 16 workers would do", id="more-were-not-tried"),
        pytest.param(replace(BEHIND, most_workers_tried=8), "More workers were not measured", id="no-cores-for-enough"),
    ],
)
def test_it_says_whether_workers_can_fix_it(evidence: Evidence, said: str) -> None:
    assert said in judge(evidence).advice


def test_advice_names_the_datasets_own_bytes() -> None:
    images = judge(PINNED).advice
    assert "588 KiB a sample now, 147 KiB as uint8" in images
    vectors = judge(replace(PINNED, uint8_bytes=None)).advice
    assert "588 KiB a sample now, 294 KiB cast to 16 bits" in vectors
    assert "a sample now." in judge(replace(PINNED, uint8_bytes=None, half_bytes=None)).advice


@pytest.mark.parametrize(
    ("evidence", "word"),
    [
        pytest.param(PAGEABLE, "pin_memory=True", id="pageable"),
        pytest.param(replace(BEHIND, one_process_per_s=9000.0), "__getitems__", id="cheap-samples"),
        pytest.param(replace(BEHIND, workers_per_s=1750.0), "prefetch_factor=4", id="uneven"),
        pytest.param(replace(BEHIND, worker_cores=0.1, disk_read_bytes_per_s=160e6), "SSD", id="storage"),
        pytest.param(
            replace(BEHIND, epoch_s=4.0, restart_s=3.9, wait_fraction=0.1, persistent=True), "RandomSampler", id="short"
        ),
    ],
)
def test_the_remedy_fits_the_cause(evidence: Evidence, word: str) -> None:
    assert word in judge(evidence).advice


@pytest.mark.parametrize(
    ("evidence", "likely"),
    [
        pytest.param(PINNED, True, id="pinning-that-is-not-waited-for"),
        pytest.param(replace(PINNED, wait_fraction=0.3), False, id="pinning-that-is-waited-for"),
        pytest.param(replace(PINNED, transfer_per_s=None, pinned_per_s=None), True, id="copies-untimed"),
        pytest.param(PAGEABLE, False, id="copies-timed"),
    ],
)
def test_what_cannot_be_told_apart_is_most_likely(evidence: Evidence, likely: bool) -> None:
    assert judge(evidence).evidence.startswith("Most likely") is likely


def test_the_devices_own_account_counts_before_an_estimate() -> None:
    """Of copies that alone would take 58% of the time, 30% were seen."""
    found = judge(replace(PAGEABLE, copy_fraction=0.3))
    assert found.gain_at_most == pytest.approx(1 / 0.7)
    assert "30% of the time" in found.evidence


def test_what_else_holds_it_back_is_named_once_and_by_its_worth() -> None:
    short = judge(replace(PAGEABLE, epoch_s=4.0, restart_s=0.5))
    assert (short.bound_by, [other.bound_by for other in short.also]) == ("transfer", ["startup"])
    assert short.also[0].gain_at_most == pytest.approx(1 / (1 - 0.5 / 4))
    several_causes = replace(BEHIND, worker_cores=0.1, disk_read_bytes_per_s=160e6, most_workers_in_memory=8)
    assert judge(several_causes).also == ()


def test_copies_behind_another_wall_are_not_worth_naming() -> None:
    """Without them the pinning thread would hand on no more."""
    assert judge(replace(PINNED, wait_fraction=0.3, copy_fraction=0.12)).also == ()


def test_a_wall_that_training_passed_without_waiting_is_none() -> None:
    """A loader alone is sometimes slower than under training; then it does not say how much more there is."""
    assert judge(replace(UINT8, workers_per_s=5000.0, pinned_per_s=4900.0)).gain_at_most is None
    assert judge(replace(UINT8, workers_per_s=None, pinned_per_s=None)).gain_at_most is None


def test_a_cpu_that_trains_and_loads_is_short_of_cores() -> None:
    busy = Evidence(
        trained_per_s=100.0, compute_per_s=160.0, wait_fraction=0.05, num_workers=1, num_usable_cores=2, on_gpu=False
    )
    found = judge(replace(busy, job_cores=1.9))
    assert found.bound_by == "cores"
    assert "GPU" not in found.advice
    assert judge(replace(busy, job_cores=1.1)).bound_by == "unclear"
    assert judge(replace(busy, job_cores=1.9, on_gpu=True)).bound_by != "cores"


def test_nothing_measured_claims_nothing() -> None:
    found = judge(Evidence())
    assert found == Verdict(bound_by="unclear", evidence=found.evidence, advice=found.advice)
    assert "explains the rest" in found.evidence


def advice_for(**given: Any) -> str:
    """Of training that waits for as many workers as there are cores."""
    waits = {"trained_per_s": 100.0, "compute_per_s": 1000.0, "workers_per_s": 100.0, "wait_fraction": 0.9}
    found = judge(Evidence(**waits, num_workers=2, num_usable_cores=2, most_workers_tried=2, on_gpu=True, **given))
    assert found.bound_by == "workers"
    return found.advice


def test_workers_that_sleep_are_not_said_to_share_cores() -> None:
    assert "share the same cores" in advice_for(worker_cores=0.9)
    assert "share the same cores" not in advice_for(worker_cores=0.02)
    assert "share the same cores" not in advice_for()


def test_more_workers_that_failed_are_not_called_unmeasured() -> None:
    told = advice_for(worker_cores=0.9, failed_with_more_workers=("crash", "crash"))
    assert told.startswith("What more workers gain is not known: 2 trials with more failed (crash).")
    assert "not measured" not in told
