"""How workers start, with how many threads, and in which order batches are delivered."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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


def computing_threads() -> int:
    """After computing so much that threads share it."""
    assert float(torch.ones(1_000_000).mul(2).sum()) == 2_000_000
    return torch.get_num_threads()


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


def pasted(name: str, job: Workload, **given: Any) -> Any:
    """The user's loader after these lines, with one worker; forked, since a function made by exec does not pickle."""
    code = lines_of(name, job).replace('"forkserver"', '"fork"')
    assert code.endswith(")")
    names: dict[str, Any] = {"dataset": job.dataset, "DataLoader": DataLoader, "torch": torch, **given}
    exec(f"{code[:-1]}, batch_size=2, num_workers=1)", names)
    return names["loader"]


def first(loader: "DataLoader[Any]") -> int:
    """Of the first sample, loaded by a worker."""
    return int(next(iter(loader))[0])


@pytest.fixture
def used_threads() -> Any:
    """This process has computed with two threads, as a training process does; workers that are forked then wait for
    ever once they do the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1_000_000).mul(2).sum()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("used_threads")
def test_workers_compute_with_two_threads_and_do_not_hang() -> None:
    plain = workload_of(Tells(computing_threads))
    changed = job_with(plain, "worker_threads")
    assert first(plain.loader.make(ONE_WORKER)) == 1
    assert first(changed.loader.make(ONE_WORKER, timeout=60)) == 2


@pytest.mark.parametrize("name", ["worker_threads", "opencv_threads"])
def test_the_users_worker_init_fn_is_still_called_also_by_the_pasted_lines(name: str, cv2: Cv2) -> None:
    own = DataLoader(Tells(left), 2, num_workers=1, worker_init_fn=leave)
    job = workload_of(Tells(left), **parts_of(own))
    assert first(job_with(job, name).loader.make(ONE_WORKER, multiprocessing_context="fork")) == 7
    assert own.worker_init_fn is leave
    assert first(pasted(name, job, loader=own)) == 7


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


def test_the_pasted_lines_start_workers_by_forkserver() -> None:
    names: dict[str, Any] = {"dataset": Table(), "DataLoader": DataLoader, "torch": torch}
    lines = lines_of("worker_threads", workload_of(Table()))
    exec(lines.replace("DataLoader(dataset", "DataLoader(dataset, num_workers=1"), names)
    assert names["loader"].multiprocessing_context.get_start_method() == "forkserver"


def test_forkserver_is_refused_for_what_does_not_pickle() -> None:
    table = Table()
    table.scale = lambda inputs: inputs / 2  # type: ignore[attr-defined]
    by_lambda = parts_of(DataLoader(Table(), 4, collate_fn=lambda samples: samples))
    for job in (workload_of(table), workload_of(Table(), **by_lambda)):
        with pytest.raises(NotApplicableError, match="does not pickle"):
            job_with(job, "worker_threads")
