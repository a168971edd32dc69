"""With how many threads of OpenCV workers run."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from remedy_rig import Table, job_with, lines_of, parts_of
from torch.utils.data import DataLoader, Dataset
from workload_rig import workload_of

from loadtune.changes import NotApplicableError
from loadtune.records.config import LoaderConfig
from loadtune.workload import Workload

ONE_WORKER = LoaderConfig(batch_size=2, num_workers=1)


class Tells(Dataset[int]):
    """What a function says in a worker."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self.ask = ask

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.ask()


def opencv_threads() -> int:
    return int(sys.modules["cv2"].getNumThreads())


LEFT = [0]


def leave(worker_id: int) -> None:
    """A ``worker_init_fn`` of the user's own."""
    LEFT[0] = 7 + worker_id


def left() -> int:
    return LEFT[0]


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


def pasted(job: Workload, **given: Any) -> Any:
    """The user's loader after these lines, with one worker; forked, since a function made by exec does not pickle."""
    code = lines_of("opencv_threads", job)
    assert code.endswith(")")
    names: dict[str, Any] = {"dataset": job.dataset, "DataLoader": DataLoader, **given}
    exec(f'{code[:-1]}, batch_size=2, num_workers=1, multiprocessing_context="fork")', names)
    return names["loader"]


def first(loader: "DataLoader[Any]") -> int:
    """Of the first sample, loaded by a worker."""
    return int(next(iter(loader))[0])


def test_the_users_worker_init_fn_is_still_called_also_by_the_pasted_lines(cv2: Cv2) -> None:
    own = DataLoader(Tells(left), 2, num_workers=1, worker_init_fn=leave)
    job = workload_of(Tells(left), **parts_of(own))
    assert first(job_with(job, "opencv_threads").loader.make(ONE_WORKER, multiprocessing_context="fork")) == 7
    assert own.worker_init_fn is leave
    assert first(pasted(job, loader=own)) == 7


def test_workers_use_one_opencv_thread_and_this_process_as_many_as_before(cv2: Cv2) -> None:
    plain = workload_of(Tells(opencv_threads))
    changed = job_with(plain, "opencv_threads")
    assert first(plain.loader.make(ONE_WORKER, multiprocessing_context="fork")) == 8
    assert first(changed.loader.make(ONE_WORKER, multiprocessing_context="fork")) == 1
    assert cv2.num == 8


def test_opencv_is_left_alone_where_it_is_not_used_or_has_one_thread(cv2: Cv2, monkeypatch: pytest.MonkeyPatch) -> None:
    job = workload_of(Table())
    cv2.num = 1
    with pytest.raises(NotApplicableError, match="does not use OpenCV, or uses one thread"):
        job_with(job, "opencv_threads")
    monkeypatch.delitem(sys.modules, "cv2")
    with pytest.raises(NotApplicableError, match="does not use OpenCV"):
        job_with(job, "opencv_threads")
