"""What a remedy is: a change of the user's code, outside of DataLoader's arguments, as one class.

A remedy answers, in this order: does it apply (`offer`), how is it used (`apply`, in the training process), what would
it gain (`job`), what has the user to write (`code`). Predicting, measuring and reporting are the same for all.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadtune.model.resources import Job
from loadtune.records.config import Precision, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.result import Examined

if TYPE_CHECKING:
    from loadtune.workload import Workload

FEWEST_EXAMINED, MOST_EXAMINED = 8, 64
"""Samples whose values are compared before a remedy is tried, and whose loading is timed at a time."""

EXAMINED_S = 1.0
"""Of slow samples there are as many as load in so many seconds."""


def num_examined(sample_s: float) -> int:
    """Of samples that take so many seconds to load."""
    return max(FEWEST_EXAMINED, min(MOST_EXAMINED, int(EXAMINED_S / max(1e-9, sample_s))))


class NotApplicableError(Exception):
    """A remedy cannot be used for this job; the message says why, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a remedy may look at before it is tried."""

    config: TrialConfig
    """The best configuration, with the remedies that were kept so far."""
    spec: WorkloadSpec
    facts: WorkloadFacts
    device: Device
    precisions: tuple[Precision, ...] = ()
    """That the search could choose."""


class Remedy:
    """The base of all remedies. A method that a remedy leaves out changes nothing."""

    name: str
    """In configurations and results: ``uint8_transfer``."""
    title: str
    """What to do, in a few words."""
    changes: str = "nothing"
    """What changes for training. Measured differences of samples are added."""
    loads: bool = True
    """Whether it changes what is loaded: the training process then compares samples and times loading. False: it
    changes what only concerns compute, and its steps are timed without a loader before it is tried."""

    def offer(self, situation: Situation) -> TrialConfig | None:
        """The configuration to try, without this remedy's name in it. None: it does not apply."""
        raise NotImplementedError

    def apply(self, workload: "Workload") -> "Workload":
        """The job with this remedy, in the training process. Raises NotApplicableError."""
        return workload

    def compared(self, workload: "Workload") -> "Workload":
        """The job without the remedy, as its samples are compared with those of the job with it."""
        return workload

    def loading(self) -> AbstractContextManager[None]:
        """Around the timing of loading with this remedy: what a worker would begin with."""
        return nullcontext()

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        """The job as the throughput model takes it. None: the model cannot predict its gain.

        By default what was timed of loading, in proportion to the time without the remedy; what the device has to do
        beside is added to its steps.
        """
        before, after = seen.before, seen.after
        if before is None or after is None:
            return None if self.loads else job
        wait_s = max(0.0, job.sample_s - job.sample_cpu_s)
        cpu_s = job.sample_cpu_s * after.sample_cpu_s / before.sample_cpu_s
        waited, waits = before.sample_s - before.sample_cpu_s, after.sample_s - after.sample_cpu_s
        kept_s = wait_s * min(1.0, waits / waited) if waited > 0.1 * before.sample_s else wait_s
        return replace(
            job,
            sample_cpu_s=cpu_s,
            sample_s=cpu_s + kept_s,
            sample_bytes=job.sample_bytes * after.sample_bytes / before.sample_bytes,
            compute={
                name: tuple((size, max(0.5 * each, each + after.prepare_s - before.prepare_s)) for size, each in curve)
                for name, curve in job.compute.items()
            },
        )

    def own_code(self, workload: "Workload") -> str:
        """Lines of Python to paste; asked in the training process, of the job without the remedy."""
        return ""

    def code(self, situation: Situation, seen: Examined) -> str:
        """The same with the settings of the configuration. ``seen.code`` is what `own_code` returned."""
        return seen.code
