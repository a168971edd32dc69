"""One batch ahead on a side stream: the same batches in the same order, and none used before its copy is done."""

from collections.abc import Iterator
from typing import Any

import pytest
from remedy_rig import CPU, LOADER, Table, job_with, lines_of, situation
from workload_rig import workload_of

from loadtune.records import LoaderConfig
from loadtune.remedies import REMEDIES


class Stream:
    """Stands for a CUDA stream: notes what is done on it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.waited = log, name, set[int]()

    def record_event(self) -> "Event":
        self.log.append(f"copied on {self.name}")
        return Event(self.log.count(f"copied on {self.name}"))

    def wait_event(self, event: "Event") -> None:
        self.waited.add(event.number)


class Event:
    def __init__(self, number: int) -> None:
        self.number = number


class Part:
    """Stands for a tensor in page-locked memory."""

    def __init__(self, number: int, cuda: "Cuda", where: str = "cpu") -> None:
        self.number, self.cuda, self.where = number, cuda, where
        self.kept_for: list[Stream] = []

    def to(self, device: str, non_blocking: bool = False) -> "Part":
        assert non_blocking
        assert self.cuda.now is self.cuda.side, "a copy on the stream that computes does not overlap"
        return Part(self.number, self.cuda, device)

    def record_stream(self, stream: Stream) -> None:
        self.kept_for.append(stream)


class Cuda:
    """Stands for `torch.cuda`."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.main = self.now = Stream(self.log, "main")
        self.side: Stream | None = None

    def Stream(self, device: str) -> Stream:
        self.side = Stream(self.log, "side")
        return self.side

    def current_stream(self) -> Stream:
        return self.now

    def stream(self, stream: Stream) -> Any:
        cuda = self

        class Within:
            def __enter__(self) -> None:
                cuda.now = stream

            def __exit__(self, *raised: object) -> None:
                cuda.now = cuda.main

        return Within()


def copied_ahead(cuda: Cuda, num: int) -> Iterator[Any]:
    """Batches by the pasted lines, without the loop at their end."""
    torch_of_user = type("torch", (), {"cuda": cuda})
    definitions, loop, _ = lines_of("copy_ahead", workload_of(Table())).partition("for inputs, targets in")
    assert loop
    names: dict[str, Any] = {"torch": torch_of_user}
    exec(definitions, names)
    loader = ([Part(at, cuda), Part(-at, cuda)] for at in range(1, num + 1))
    return names["copied_ahead"](loader, "cuda")  # type: ignore[no-any-return]


@pytest.mark.parametrize("num", [0, 1, 2, 7])
def test_the_pasted_lines_give_every_batch_once_in_order(num: int) -> None:
    cuda = Cuda()
    seen = [(inputs.number, targets.number) for inputs, targets in copied_ahead(cuda, num)]
    assert seen == [(at, -at) for at in range(1, num + 1)]


def test_the_pasted_lines_copy_one_batch_ahead_and_wait_for_the_copy_of_their_own() -> None:
    cuda = Cuda()
    for number, (inputs, targets) in enumerate(copied_ahead(cuda, 4), start=1):
        assert cuda.now is cuda.main
        assert cuda.main.waited == set(range(1, number + 1))
        assert cuda.log == ["copied on side"] * min(4, number + 1)
        assert (inputs.where, targets.where) == ("cuda", "cuda")
        assert inputs.kept_for == targets.kept_for == [cuda.main], "or its memory is reused while it is trained on"


def test_the_job_copies_ahead_and_the_users_own_does_not() -> None:
    job = workload_of(Table())
    assert job_with(job, "copy_ahead").copy_ahead
    assert not job.copy_ahead


def test_offered_for_page_locked_batches_on_a_gpu() -> None:
    offer = REMEDIES["copy_ahead"].offer
    assert offer(situation()) == situation().config
    assert offer(situation(device=CPU)) is None
    assert offer(situation(loader=LoaderConfig(batch_size=4, num_workers=LOADER.num_workers))) is None
