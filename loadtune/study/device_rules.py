"""What can hold a job up beside its loader: the way to the device, the device, the start of epochs. One rule each."""

from loadtune.records import Hindrance
from loadtune.study.phrases import cores_text, device_takes, named
from loadtune.study.walls import Evidence, least, without_share
from loadtune.units import bytes_text, percent_text, rate_text, seconds_text

SHARE_THAT_COUNTS = 0.1
"""Of the time: as much as the compute-only rate leaves before the device counts as the wall."""


def transfer(e: Evidence) -> Hindrance | None:
    """Copies keep the device from computing."""
    share = e.copy_share
    if e.is_saturated or e.on_gpu is False or share is None or share < SHARE_THAT_COUNTS:
        return None
    kind = "" if e.pinned is None else " from pinned memory" if e.pinned else " from pageable memory"
    speed = f" at {bytes_text(e.transfer_per_s * e.sample_bytes)}/s" if e.transfer_per_s and e.sample_bytes else ""
    figures = f"Copies{kind}{speed} take {percent_text(min(1.0, share))} of the time{device_takes(e)}."
    return named("transfer", figures, least(without_share(share), e.gain_without("transfer")))


def startup(e: Evidence) -> Hindrance | None:
    """Epochs are short, and each begins with an empty queue."""
    if e.restart_s is None or not e.epoch_s or e.restart_s < SHARE_THAT_COUNTS * e.epoch_s:
        return None
    figures = (
        f"An epoch takes {seconds_text(e.epoch_s)}, and about {seconds_text(min(e.restart_s, e.epoch_s))} of it pass "
        "before its first batch is ready."
    )
    return named("startup", figures, least(without_share(e.restart_s / e.epoch_s), _up_to_compute(e)))


def compute(e: Evidence) -> Hindrance | None:
    """The device is as busy as training can make it."""
    if not e.is_saturated:
        return None
    figures = f"The device computes {percent_text(e.utilization)} of the time."
    if e.compute_per_s:
        figures = (
            f"It trains {rate_text(e.trained_per_s)}, {percent_text(e.utilization)} of the "
            f"{rate_text(e.compute_per_s)} that the device reaches without a loader."
        )
    return named("compute", figures, e.gain_without("compute"))


def left_over(e: Evidence) -> Hindrance | None:
    """Workers keep up, the device is not full, and copies were not timed."""
    timed = e.copy_share is not None or e.pinning_is_the_wall
    if e.is_saturated or e.waits or timed or not e.on_gpu or e.utilization is None:
        return None
    figures = (
        f"Most likely: {percent_text(e.utilization)} of the compute-only rate at {percent_text(e.wait_fraction)} data "
        "wait leaves the way to the device; copies were not timed."
    )
    return named("transfer", figures, _up_to_compute(e))


def unclear(e: Evidence) -> Hindrance:
    """What is said where no rule finds anything."""
    figures = f"{percent_text(e.utilization)} of the compute-only rate"
    figures += f", {percent_text(e.wait_fraction)} blocked in next(loader)"
    figures += "" if e.idle_fraction is None else f", device idle {percent_text(e.idle_fraction)}"
    if e.is_stretched:
        figures = f"{figures}; a step takes the device {e.stretch:.1f} times as long as without a loader."
        return named("unclear", figures, _up_to_compute(e))
    figures += "" if e.main_cores is None else f", training process {cores_text(e.main_cores)} core"
    return named("unclear", f"{figures}; nothing that was timed explains the rest.", _up_to_compute(e))


def _up_to_compute(e: Evidence) -> float | None:
    return None if e.utilization is None else without_share(1 - e.utilization)
