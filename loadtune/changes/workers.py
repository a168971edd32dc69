"""With how many threads workers run."""

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined

if TYPE_CHECKING:
    from loadtune.workload import Workload

NUM_THREADS = 2


class Threads(Remedy):
    """The base of those that set a library's threads in each worker."""

    loads = True
    library: str
    getter: str
    setter: str
    num: int
    """What the setter is called with."""
    init: str
    """Name of the ``worker_init_fn`` in the lines to paste."""

    def apply(self, workload: "Workload") -> "Workload":
        init = partial(init_worker, self.library, self.setter, self.num, workload.loader.worker_init_fn)
        return replace(workload, loader=replace(workload.loader, worker_init_fn=init))

    def own_code(self, workload: "Workload") -> str:
        name, is_own = self.init, workload.loader.worker_init_fn is not None
        lines = [
            *([f"import {self.library}", ""] if self.library != "torch" else []),
            *([f"{name}_before = loader.worker_init_fn  # of your loader as it is", ""] if is_own else []),
            f"def {name}(worker_id):",
            f"    {self.library}.{self.setter}({self.num})",
            *([f"    {name}_before(worker_id)"] if is_own else []),
            "",
            self.lines,
        ]
        return "\n".join(lines)

    @contextmanager
    def loading(self) -> Iterator[None]:
        library = import_module(self.library)
        before = getattr(library, self.getter)()
        getattr(library, self.setter)(self.num)
        try:
            yield
        finally:
            getattr(library, self.setter)(before)


def init_worker(library: str, setter: str, num: int, then: Callable[[int], None] | None, worker_id: int) -> None:
    """As `partial` makes a ``worker_init_fn`` of it that pickles."""
    getattr(import_module(library), setter)(num)
    if then is not None:
        then(worker_id)


class WorkerThreads(Threads):
    """Two PyTorch threads in each worker instead of one, where there are cores for them.

    Workers are started by forkserver: OpenMP's threads do not survive a fork, and a forked worker that computes with
    several of them waits for ever (seen with torch 2.14 and libgomp).
    """

    name = "worker_threads"
    title = f"{NUM_THREADS} threads in each worker, started by forkserver"
    changes = (
        "nothing, or rounding in operations that threads share; workers take seconds longer to start; the dataset has "
        'to pickle, and the script needs `if __name__ == "__main__":`'
    )
    library, getter, setter = "torch", "get_num_threads", "set_num_threads"
    num, init = NUM_THREADS, "set_threads"
    lines = 'loader = DataLoader(dataset, worker_init_fn=set_threads, multiprocessing_context="forkserver", ...)'

    def offer(self, situation: Situation) -> TrialConfig | None:
        fits = 0 < NUM_THREADS * situation.config.loader.num_workers <= situation.num_cores
        return situation.config if fits and not situation.has("cached") else None  # each worker would get a copy

    def apply(self, workload: "Workload") -> "Workload":
        loader = workload.loader
        if loader.multiprocessing_context in (None, "fork"):
            try:
                pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn))
            except Exception as error:
                raise NotApplicableError("the dataset does not pickle") from error
            workload = replace(workload, loader=replace(loader, multiprocessing_context="forkserver"))
        return super().apply(workload)

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        """What several threads compute at once is one worker's time, as the model counts it."""
        if seen.before is None or seen.after is None:
            return None
        ratio = seen.after.sample_s / seen.before.sample_s
        return replace(job, sample_s=job.sample_s * ratio, sample_cpu_s=job.sample_cpu_s * ratio)


class OpencvThreads(Threads):
    """One OpenCV thread in each worker, its own: by itself OpenCV starts as many as there are cores, in every worker.

    ``setNumThreads(0)``, not 1: with 1 a worker that was forked from a process that used OpenCV's threads waits for
    ever in its next call (seen with OpenCV 5.0).
    """

    name = "opencv_threads"
    title = "one OpenCV thread in each worker"
    library, getter, setter = "cv2", "getNumThreads", "setNumThreads"
    num, init = 0, "one_thread"
    lines = "loader = DataLoader(dataset, worker_init_fn=one_thread, ...)"

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if situation.config.loader.num_workers else None

    def apply(self, workload: "Workload") -> "Workload":
        cv2 = sys.modules.get("cv2")
        if cv2 is None or cv2.getNumThreads() <= 1:
            raise NotApplicableError("the dataset does not use OpenCV, or uses one thread already")
        return super().apply(workload)
