"""With how many threads of OpenCV workers run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.records.config import TrialConfig

if TYPE_CHECKING:
    from loadtune.workload import Workload


class OpencvThreads(Remedy):
    """One OpenCV thread in each worker, its own: by itself OpenCV starts as many as there are cores, in every worker.

    ``setNumThreads(0)``, not 1: with 1 a worker that was forked from a process that used OpenCV's threads waits for
    ever in its next call (seen with OpenCV 5.0).
    """

    name = "opencv_threads"
    title = "one OpenCV thread in each worker"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if situation.config.loader.num_workers else None

    def apply(self, workload: "Workload") -> "Workload":
        cv2 = sys.modules.get("cv2")
        if cv2 is None or cv2.getNumThreads() <= 1:
            raise NotApplicableError("the dataset does not use OpenCV, or uses one thread already")
        init = partial(one_thread, workload.loader.worker_init_fn)
        return replace(workload, loader=replace(workload.loader, worker_init_fn=init))

    def own_code(self, workload: "Workload") -> str:
        is_own = workload.loader.worker_init_fn is not None
        lines = [
            "import cv2",
            "",
            *(["init_before = loader.worker_init_fn  # of your loader as it is", ""] if is_own else []),
            "def one_thread(worker_id):",
            "    cv2.setNumThreads(0)",
            *(["    init_before(worker_id)"] if is_own else []),
            "",
            "loader = DataLoader(dataset, worker_init_fn=one_thread, ...)",
        ]
        return "\n".join(lines)

    @contextmanager
    def loading(self) -> Iterator[None]:
        cv2 = sys.modules["cv2"]
        before = cv2.getNumThreads()
        cv2.setNumThreads(0)
        try:
            yield
        finally:
            cv2.setNumThreads(before)


def one_thread(then: Callable[[int], None] | None, worker_id: int) -> None:
    """As `partial` makes a ``worker_init_fn`` of it that pickles."""
    import_module("cv2").setNumThreads(0)
    if then is not None:
        then(worker_id)
