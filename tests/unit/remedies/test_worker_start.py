"""How workers start, and with how many threads."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from remedy_rig import CPU, Table, job_with, lines_of, parts_of, situation
from torch.utils.data import DataLoader, Dataset
from workload_rig import workload_of

from loadtune.records import LoaderConfig
from loadtune.remedies import REMEDIES, NotApplicableError

ONE_WORKER = LoaderConfig(batch_size=2, num_workers=1)


class Threads(Dataset[int]):
    """Tells with how many threads a worker computes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


class Computing(Threads):
    """Computes so much that threads share it."""

    def __getitem__(self, index: int) -> int:
        assert float(torch.ones(1_000_000).mul(2).sum()) == 2_000_000
        return super().__getitem__(index)


class Told(Dataset[int]):
    """Tells what a ``worker_init_fn`` of the user's own left."""

    left = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return Told.left


def leave(worker_id: int) -> None:
    Told.left = 7 + worker_id


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


class OpencvThreads(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return int(sys.modules["cv2"].getNumThreads())


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
    plain = workload_of(Computing())
    changed = job_with(plain, "worker_threads")
    assert first(plain.loader.make(ONE_WORKER)) == 1
    assert first(changed.loader.make(ONE_WORKER, timeout=60)) == 2


@pytest.mark.parametrize("name", ["worker_threads", "opencv_threads"])
def test_the_users_worker_init_fn_is_still_called(name: str, cv2: Cv2) -> None:
    own = DataLoader(Told(), 2, num_workers=1, worker_init_fn=leave)
    changed = job_with(workload_of(Told(), **parts_of(own)), name)
    assert first(changed.loader.make(ONE_WORKER, multiprocessing_context="fork")) == 7
    assert own.worker_init_fn is leave


@pytest.mark.parametrize("name", ["worker_threads", "opencv_threads"])
def test_the_pasted_lines_call_the_users_worker_init_fn(name: str, cv2: Cv2) -> None:
    loader = DataLoader(Told(), 2, num_workers=1, worker_init_fn=leave)
    code = lines_of(name, workload_of(Told(), **parts_of(loader)))
    names: dict[str, Any] = {"dataset": Told(), "loader": loader, "DataLoader": DataLoader, "torch": torch}
    exec(_with_workers(code), names)
    assert first(names["loader"]) == 7


def test_the_pasted_lines_set_the_threads_of_workers() -> None:
    names: dict[str, Any] = {"dataset": Threads(), "DataLoader": DataLoader, "torch": torch}
    exec(_with_workers(lines_of("worker_threads", workload_of(Threads()))), names)
    assert first(names["loader"]) == 2


def test_workers_use_one_opencv_thread_and_this_process_as_many_as_before(cv2: Cv2) -> None:
    plain = workload_of(OpencvThreads())
    changed = job_with(plain, "opencv_threads")
    assert first(plain.loader.make(ONE_WORKER, multiprocessing_context="fork")) == 8
    assert first(changed.loader.make(ONE_WORKER, multiprocessing_context="fork")) == 1
    assert cv2.num == 8


def test_the_pasted_lines_set_opencv_to_one_thread(cv2: Cv2) -> None:
    names: dict[str, Any] = {"dataset": OpencvThreads(), "DataLoader": DataLoader}
    exec(_with_workers(lines_of("opencv_threads", workload_of(OpencvThreads()))), names)
    assert first(names["loader"]) == 1


def test_opencv_is_left_alone_where_it_is_not_used_or_has_one_thread(cv2: Cv2, monkeypatch: pytest.MonkeyPatch) -> None:
    job = workload_of(Table())
    cv2.num = 1
    with pytest.raises(NotApplicableError, match="does not use OpenCV, or uses one thread"):
        job_with(job, "opencv_threads")
    monkeypatch.delitem(sys.modules, "cv2")
    with pytest.raises(NotApplicableError, match="does not use OpenCV"):
        job_with(job, "opencv_threads")


@pytest.mark.parametrize(("name", "inside"), [("worker_threads", (2, 8)), ("opencv_threads", (1, 1))])
def test_loading_is_timed_with_the_threads_of_a_worker(name: str, inside: tuple[int, int], cv2: Cv2) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with REMEDIES[name].loading():
            assert (torch.get_num_threads(), cv2.num) == inside
        assert (torch.get_num_threads(), cv2.num) == (1, 8)
    finally:
        torch.set_num_threads(before)


def test_workers_start_by_forkserver_and_load_the_same() -> None:
    own = DataLoader(Table(), 4)
    plain = workload_of(Table(), **parts_of(own))
    changed = job_with(plain, "start_method")
    assert changed.loader.multiprocessing_context == "forkserver"
    (batch,) = changed.loader.make(LoaderConfig(batch_size=3, num_workers=1), sampler=[5, 1, 2])
    assert torch.equal(batch[0], Table().inputs[[5, 1, 2]])
    assert own.multiprocessing_context is None


@pytest.mark.parametrize("name", ["start_method", "worker_threads"])
def test_the_pasted_lines_start_workers_by_forkserver(name: str) -> None:
    names: dict[str, Any] = {"dataset": Table(), "DataLoader": DataLoader, "torch": torch}
    exec(lines_of(name, workload_of(Table())).replace("DataLoader(dataset", "DataLoader(dataset, num_workers=1"), names)
    assert names["loader"].multiprocessing_context.get_start_method() == "forkserver"


def test_forkserver_is_refused_for_what_does_not_pickle() -> None:
    table = Table()
    table.scale = lambda inputs: inputs / 2  # type: ignore[attr-defined]
    by_lambda = parts_of(DataLoader(Table(), 4, collate_fn=lambda samples: samples))
    for job in (workload_of(table), workload_of(Table(), **by_lambda)):
        for name in ("start_method", "worker_threads"):
            with pytest.raises(NotApplicableError, match="does not pickle"):
                job_with(job, name)


def test_forkserver_is_refused_where_workers_start_otherwise_already() -> None:
    own = DataLoader(Table(), 4, num_workers=1, multiprocessing_context="spawn")
    job = workload_of(Table(), **parts_of(own))
    with pytest.raises(NotApplicableError, match="by spawn already"):
        job_with(job, "start_method")
    assert job_with(job, "worker_threads").loader.multiprocessing_context == "spawn"


def test_threads_can_be_added_after_forkserver_was_kept() -> None:
    job = job_with(workload_of(Table()), "worker_threads", "start_method")
    assert job.loader.multiprocessing_context == "forkserver"


def test_offered_with_workers_and_where_there_are_cores() -> None:
    none, two, five = (LoaderConfig(batch_size=4, num_workers=num) for num in (0, 2, 5))
    for name in ("worker_threads", "opencv_threads", "start_method"):
        offer = REMEDIES[name].offer
        assert offer(situation(loader=none)) is None
        assert offer(situation(loader=two, device=CPU)) == situation(loader=two).config
        if name != "opencv_threads":
            assert offer(situation(loader=two, remedies=("cached",))) is None, "each worker would get a copy"
    assert REMEDIES["worker_threads"].offer(situation(loader=five, num_cores=9)) is None
    assert REMEDIES["start_method"].offer(situation(facts={"start_method": "spawn"})) is None


def _with_workers(code: str) -> str:
    """With the arguments that the lines leave to the user; forked, since a function made by exec does not pickle."""
    assert code.endswith(")")
    return f"{code[:-1]}, batch_size=2, num_workers=1)".replace('"forkserver"', '"fork"')
