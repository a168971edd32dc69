"""Whether other processes disturbed a segment. Pure, over what was seen of the machine meanwhile."""

from typing import NamedTuple

from loadtune.records import Measurement, TrialFailure

LEAST = 0.1
"""Share of the usable cores, or of the GPU, used by other processes from which on a segment counts as disturbed. The
counters of processes and of cores differ by up to 3% of the cores over a segment on an H200."""


class Disturbance(NamedTuple):
    """What processes that are not ours took."""

    share: float = 0.0
    """0 also where it could not be read."""
    taken_of: str = "CPU cores"

    @property
    def matters(self) -> bool:
        return self.share >= LEAST


def disturbance(outcome: Measurement | TrialFailure, num_usable_cores: int) -> Disturbance:
    """Of the cores or of the GPU, whichever others took more of."""
    seen = outcome.telemetry if isinstance(outcome, Measurement) else None
    if seen is None:
        return Disturbance()
    cores = Disturbance((seen.others_cpu_cores or 0.0) / max(1, num_usable_cores))
    return max(cores, Disturbance(seen.gpu_others_sm_fraction or 0.0, "GPU"))
