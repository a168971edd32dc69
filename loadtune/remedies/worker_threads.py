"""Two PyTorch threads in each worker instead of one, where there are cores for them.

Workers are started by forkserver: OpenMP's threads do not survive a fork, and a forked worker that computes with
several of them waits for ever (seen with torch 2.14 and libgomp).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadtune.model.resources import Job
from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import Remedy, Situation, init_lines
from loadtune.remedies.start_method import StartMethod

if TYPE_CHECKING:
    from loadtune.workload import Workload

NUM_THREADS = 2


class WorkerThreads(Remedy):
    title = f"{NUM_THREADS} threads in each worker, started by forkserver"
    changes = f"nothing, or rounding in operations that threads share; {StartMethod.changes}"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        config = situation.config
        if "cached" in config.remedies:
            return None  # workers that share nothing would each get a copy
        return config if 0 < NUM_THREADS * config.loader.num_workers <= situation.num_cores else None

    def apply(self, workload: "Workload") -> "Workload":
        if workload.loader.multiprocessing_context in (None, "fork"):
            workload = StartMethod().apply(workload)
        init = SetThreads(NUM_THREADS, workload.loader.worker_init_fn)
        return replace(workload, loader=replace(workload.loader, worker_init_fn=init))

    @contextmanager
    def loading(self) -> Iterator[None]:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(NUM_THREADS)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        """What several threads compute at once is one worker's time, as the model counts it."""
        if seen.before is None or seen.after is None:
            return None
        ratio = seen.after.sample_s / seen.before.sample_s
        return replace(job, sample_s=job.sample_s * ratio, sample_cpu_s=job.sample_cpu_s * ratio)

    def own_code(self, workload: "Workload") -> str:
        return (
            f"{init_lines(workload, 'set_threads', f'torch.set_num_threads({NUM_THREADS})')}\n"
            'loader = DataLoader(dataset, worker_init_fn=set_threads, multiprocessing_context="forkserver", ...)'
        )


@dataclass(frozen=True, slots=True)
class SetThreads:
    """A ``worker_init_fn``. A class, so that workers started by spawn can pickle it."""

    num: int
    then: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        import torch

        torch.set_num_threads(self.num)
        if self.then is not None:
            self.then(worker_id)
