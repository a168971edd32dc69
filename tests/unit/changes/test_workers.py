"""With how many threads of OpenCV workers run."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from remedy_rig import Table, job_with, lines_of, parts_of, way_of
from torch.utils.data import DataLoader, Dataset
from workload_rig import workload_of

from loadtune.changes.trial import Ways
from loadtune.records.config import LoaderConfig
from loadtune.records.loading import NotApplicableError

LEFT = [0]


def leave(worker_id: int) -> None:
    """A ``worker_init_fn`` of the user's own."""
    LEFT[0] = 7 + worker_id


class Tells(Dataset[Any]):
    """OpenCV's threads in a worker, and what the user's own function has left there."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return sys.modules["cv2"].getNumThreads(), LEFT[0]


class Cv2(SimpleNamespace):
    """Stands for OpenCV, whose threads this process has used: in one that is forked, 1 would wait for them for ever."""

    def __init__(self, num: int) -> None:
        super().__init__(num=num, process=os.getpid())

    def getNumThreads(self) -> int:
        return self.num

    def setNumThreads(self, num: int) -> None:
        assert num == 0 or os.getpid() == self.process
        self.num = max(1, num)


@pytest.fixture
def cv2(monkeypatch: pytest.MonkeyPatch) -> Cv2:
    made = Cv2(8)
    monkeypatch.setitem(sys.modules, "cv2", made)
    return made


def told(loader: "DataLoader[Any]") -> list[int]:
    """Of the first sample, loaded by a worker."""
    return [int(part[0]) for part in next(iter(loader))]


def test_workers_use_one_thread_and_the_users_own_function_is_still_called(cv2: Cv2) -> None:
    one = LoaderConfig(batch_size=2, num_workers=1)
    own = DataLoader(Tells(), 2, num_workers=1, worker_init_fn=leave)
    job = workload_of(own.dataset, **parts_of(own))
    assert told(job.loader.make(one, multiprocessing_context="fork")) == [8, 7]
    assert told(job_with(job, "opencv_threads").loader.make(one, multiprocessing_context="fork")) == [1, 7]
    tried = Ways(way_of(job)).way(["opencv_threads"])
    assert tried.load([0])[0] == 1, "samples are timed as such workers load them"
    assert (cv2.num, own.worker_init_fn) == (8, leave), "this process and the user's loader are as before"
    code = lines_of("opencv_threads", job)
    names: dict[str, Any] = {"dataset": job.dataset, "DataLoader": DataLoader, "loader": own}
    exec(f'{code[:-1]}, batch_size=2, num_workers=1, multiprocessing_context="fork")', names)  # what exec made: forked
    assert told(names["loader"]) == [1, 7]


def test_opencv_is_left_alone_where_it_is_not_used_or_has_one_thread(cv2: Cv2, monkeypatch: pytest.MonkeyPatch) -> None:
    job = workload_of(Table())
    cv2.num = 1
    with pytest.raises(NotApplicableError, match="does not use OpenCV, or uses one thread"):
        job_with(job, "opencv_threads")
    monkeypatch.delitem(sys.modules, "cv2")
    with pytest.raises(NotApplicableError, match="does not use OpenCV"):
        job_with(job, "opencv_threads")
