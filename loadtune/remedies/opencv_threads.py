"""One OpenCV thread in each worker, its own: by itself OpenCV starts as many as there are cores, in every worker.

``setNumThreads(0)``, not 1: with 1 a worker that was forked from a process that used OpenCV's threads waits for ever in
its next call (seen with OpenCV 5.0).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation, init_lines

if TYPE_CHECKING:
    from loadtune.workload import Workload


class OpencvThreads(Remedy):
    title = "one OpenCV thread in each worker"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if situation.config.loader.num_workers else None

    def apply(self, workload: "Workload") -> "Workload":
        import sys

        cv2 = sys.modules.get("cv2")
        if cv2 is None or cv2.getNumThreads() <= 1:
            raise NotApplicableError("the dataset does not use OpenCV, or uses one thread already")
        init = OneThread(workload.loader.worker_init_fn)
        return replace(workload, loader=replace(workload.loader, worker_init_fn=init))

    @contextmanager
    def loading(self) -> Iterator[None]:
        import sys

        cv2 = sys.modules["cv2"]
        before = cv2.getNumThreads()
        cv2.setNumThreads(0)
        try:
            yield
        finally:
            cv2.setNumThreads(before)

    def own_code(self, workload: "Workload") -> str:
        return (
            f"import cv2\n\n{init_lines(workload, 'one_thread', 'cv2.setNumThreads(0)')}\n"
            "loader = DataLoader(dataset, worker_init_fn=one_thread, ...)"
        )


@dataclass(frozen=True, slots=True)
class OneThread:
    """A ``worker_init_fn``. A class, so that workers started by spawn can pickle it."""

    then: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        import cv2  # type: ignore[import-not-found]

        cv2.setNumThreads(0)
        if self.then is not None:
            self.then(worker_id)
