"""Page-locked blocks: those that the next run pins again are kept, and a loader's are locked before it trains."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from loadtune.bench import pinned
from loadtune.bench.memory import CudaMemory
from loadtune.bench.pinned import PinnedBlocks, page_lock_s
from loadtune.bench.prefetch_queue import Depth
from loadtune.bench.session import Session
from loadtune.records import LoaderConfig

SAMPLE_BYTES = 1000
BLOCK_BYTES = 1 << 18
"""What 256 samples go into."""
CUDA = torch.device("cuda", 0)


class CountingMemory:
    """Stands for a `DeviceMemory`: how often blocks were given back, and the sizes of those locked."""

    def __init__(self, most_blocks: int = 1000, held: int | None = None, *, integrated: bool = False) -> None:
        self.held, self.integrated = held, integrated
        self.freed, self.locked, self.most_blocks = 0, list[int](), most_blocks
        self.pulses: list[int] = []
        """Blocks that were locked at each sign of life."""

    def free_pinned(self) -> None:
        self.freed += 1
        self.held = None if self.held is None else 0

    def pinned_bytes(self) -> int | None:
        return self.held

    def is_the_hosts(self) -> bool:
        return self.integrated

    def lock_block(self, num_bytes: int) -> Any:
        if len(self.locked) == self.most_blocks:
            return None
        self.locked.append(num_bytes)
        return object()


def blocks(memory: CountingMemory, available_bytes: int = 1 << 40) -> PinnedBlocks:
    stand_in: Any = memory
    return PinnedBlocks(stand_in, lambda: available_bytes)


def config(batch_size: int = 256, *, pin_memory: bool = True, num_workers: int = 2) -> LoaderConfig:
    return LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)


def freed_before(available_bytes: int, *asked: LoaderConfig) -> list[int]:
    """How often blocks had been given back when each of these runs began."""
    memory, freed = CountingMemory(), []
    kept = blocks(memory, available_bytes)
    for each in asked:
        kept.keep_for(each, SAMPLE_BYTES)
        freed.append(memory.freed)
    return freed


def test_blocks_are_kept_beside_those_of_other_sizes_and_through_runs_that_pin_nothing() -> None:
    asked = [config(256), config(512), config(pin_memory=False), config(512), config(256)]
    assert freed_before(1 << 40, *asked) == [0] * 5


def test_blocks_are_kept_for_batches_that_go_into_them() -> None:
    """Whatever they take of the memory; one sample more goes into blocks of another size."""
    largest = BLOCK_BYTES // SAMPLE_BYTES
    assert freed_before(0, config(256), config(largest), config(largest + 1)) == [0, 0, 1]


QUEUE = 6 * BLOCK_BYTES
"""Of two workers and 256 samples; of 512 twice that."""


def test_blocks_of_other_sizes_are_given_back_where_they_are_too_much_of_the_memory() -> None:
    """What is kept is not available: 15% are of both together."""
    whole = QUEUE / 0.15
    unpinned = config(pin_memory=False)
    assert freed_before(int(whole - QUEUE) + 10, config(256), config(512)) == [0, 0]
    assert freed_before(int(whole - QUEUE) - 10, config(256), config(512)) == [0, 1]
    assert freed_before(int(whole - QUEUE) - 10, config(256), unpinned, unpinned) == [0, 1, 1]
    assert freed_before(0, config(256), config(256)) == [0, 0], "its own are what it would lock again"


def test_what_was_given_back_counts_no_more() -> None:
    """512, 256 and 1024 samples: the first goes before the second run, so the third finds only the second's."""
    memory, whole = CountingMemory(), 2 * QUEUE / 0.15
    stand_in: Any = memory
    left = iter([whole, whole - 2 * QUEUE - 10, whole - QUEUE])
    kept, freed = PinnedBlocks(stand_in, lambda: int(next(left))), []
    for batch_size in (512, 256, 1024):
        kept.keep_for(config(batch_size), SAMPLE_BYTES)
        freed.append(memory.freed)
    assert freed == [0, 1, 1]


@pytest.mark.parametrize(("held", "freed"), [(3 * QUEUE, 1), (QUEUE, 0)])
def test_the_allocators_own_books_say_what_is_held(held: int, freed: int) -> None:
    """Targets are pinned as well, and the thread takes blocks that nobody asked for: 15% of 12 queues are 1.8."""
    memory = CountingMemory(held=0)
    kept = blocks(memory, 12 * QUEUE - held)
    kept.keep_for(config(256), SAMPLE_BYTES)
    memory.held = held
    kept.keep_for(config(512), SAMPLE_BYTES)
    assert memory.freed == freed


def test_blocks_of_a_run_with_more_workers_are_of_no_use_to_one_with_fewer() -> None:
    """34 blocks of 16 workers, of which one worker fills four."""
    sixteen, one = config(num_workers=16), config(num_workers=1)
    assert freed_before(100 * BLOCK_BYTES, sixteen, one, one) == [0, 1, 1]
    assert freed_before(200 * BLOCK_BYTES, sixteen, one, sixteen) == [0, 0, 0]


def test_blocks_go_back_where_a_run_has_more_to_lock_than_they_leave() -> None:
    """Six small ones are little, but half of what is available is not enough for 34 of four times their size."""
    large = config(1024, num_workers=16)
    assert freed_before(2 * 34 * 4 * BLOCK_BYTES + 10, config(256), large) == [0, 0]
    assert freed_before(2 * 34 * 4 * BLOCK_BYTES - 10, config(256), large) == [0, 1]


@pytest.mark.parametrize("held", [None, QUEUE + QUEUE // 20])
def test_no_other_sizes_are_kept_where_the_devices_memory_is_the_hosts(held: int | None) -> None:
    """Of its own size all are, and the small blocks of its labels beside them: the first run's, found by the second."""
    memory, freed = CountingMemory(integrated=True), []
    kept = blocks(memory, 12 * QUEUE)
    for each in (config(256), config(256), config(pin_memory=False), config(pin_memory=False)):
        kept.keep_for(each, SAMPLE_BYTES)
        memory.held = None if held is None else held if each.pin_memory else 0
        freed.append(memory.freed)
    assert freed == [0, 0, 1, 1]


def test_what_is_locked_after_a_refusal_is_booked_for_the_next_run() -> None:
    memory = CountingMemory(most_blocks=3)
    ahead, asked = PinnedBlocks(cast("Any", memory), lambda: 20 * BLOCK_BYTES), config()
    ahead.keep_for(asked, SAMPLE_BYTES)
    loader: Any = SimpleNamespace(config=asked, any_made=lambda: False, depth=lambda: None)
    ahead.lock_ahead(loader, 10.0, lambda: None)
    ahead.keep_for(config(pin_memory=False), SAMPLE_BYTES)
    assert memory.freed == 2, "once where no more was to be had, once before the run that pins nothing"


def test_a_session_says_what_a_sample_takes() -> None:
    session = Session.__new__(Session)
    inputs = torch.zeros(16, 3, 8, 8)
    asked: list[int] = []
    session._samples = SimpleNamespace(batch=(inputs, torch.zeros(16)))  # type: ignore[assignment]
    session._pinned = SimpleNamespace(keep_for=lambda loader, sample_bytes: asked.append(sample_bytes))  # type: ignore[assignment]
    session._keep_pinned_for(config())
    assert asked == [3 * 8 * 8 * 4]


def locked(
    memory: CountingMemory, asked: LoaderConfig, made_after: int | None = None, available_bytes: int = 1 << 40
) -> list[int]:
    """Sizes of the blocks locked for a loader that has made a batch after so many blocks; None: never."""
    return lock(memory, asked, made_after, available_bytes)[0]


def lock(
    memory: CountingMemory,
    asked: LoaderConfig,
    made_after: int | None = None,
    available_bytes: int = 1 << 40,
    ready: Callable[[int], Depth | None] = lambda locked: None,
) -> tuple[list[int], float]:
    """A block takes a second. What was locked, and how long it went on with a batch there; `ready` is what is pinned
    by the time that so many blocks are locked."""
    ahead = PinnedBlocks(cast("Any", memory), lambda: available_bytes, lambda: 10.0 + len(memory.locked))
    ahead.keep_for(asked, SAMPLE_BYTES)
    loader: Any = SimpleNamespace(
        config=asked,
        any_made=lambda: made_after is not None and len(memory.locked) >= made_after,
        depth=lambda: ready(len(memory.locked)),
    )
    waited_s = ahead.lock_ahead(loader, 10.0, lambda: memory.pulses.append(len(memory.locked)))
    return memory.locked, waited_s


def test_a_queue_is_locked_while_its_first_batch_is_made() -> None:
    """Two workers keep four batches ahead; one more is filled and one copied."""
    assert locked(CountingMemory(), config()) == [BLOCK_BYTES] * 6


def test_locking_ends_when_it_has_taken_twice_as_long_as_the_first_batch() -> None:
    eight = config(num_workers=8)
    assert lock(CountingMemory(), eight, made_after=2) == ([BLOCK_BYTES] * 4, 2.0)
    assert lock(CountingMemory(), eight, made_after=17) == ([BLOCK_BYTES] * 18, 1.0), "by then all are locked"
    assert lock(CountingMemory(), eight) == ([BLOCK_BYTES] * 18, 0.0), "the batch came later"


def test_what_the_pinning_thread_took_for_itself_is_locked_already() -> None:
    """18 are needed; behind the first batch, after 10, it pins one for each that is locked here."""
    memory, eight = CountingMemory(), config(num_workers=8)

    def pinned_by(locked: int) -> Depth:
        return Depth(unpinned=0, ready=max(0, locked - 10))

    assert lock(memory, eight, made_after=10, ready=pinned_by) == ([BLOCK_BYTES] * 14, 4.0)


@pytest.mark.parametrize(("waiting", "num_locked"), [(None, 4), (0, 4), (3, 4), (7, 7), (9, 9), (18, 10)])
def test_batches_that_are_made_have_their_blocks_before_the_model_trains(waiting: int | None, num_locked: int) -> None:
    """The pinning thread would lock them at once, beside the first steps. Time for two more was up at four, for any at
    ten."""
    eight = config(num_workers=8)
    made = lock(CountingMemory(), eight, made_after=2, ready=lambda locked: Depth(unpinned=waiting, ready=0))[0]
    assert len(made) == num_locked


def test_blocks_that_the_pinning_thread_took_need_not_be_there_twice() -> None:
    """It takes one for each that is locked here, so that of 18 batches 9 are left to be pinned with these."""
    half = lock(
        CountingMemory(),
        config(num_workers=8),
        made_after=2,
        ready=lambda locked: Depth(unpinned=18 - locked, ready=locked),
    )[0]
    assert len(half) == 9


def test_a_bench_that_locks_on_behind_its_first_batch_is_alive() -> None:
    """Before it, whoever listens has to know that none came."""
    memory = CountingMemory()
    lock(memory, config(num_workers=8), made_after=4)
    assert memory.pulses == [4, 5, 6, 7]


def test_nothing_is_locked_for_a_loader_that_pins_nothing_or_has_no_workers() -> None:
    assert locked(CountingMemory(), config(pin_memory=False)) == []
    assert locked(CountingMemory(), config(num_workers=0), made_after=0) == []


def test_no_more_than_half_of_the_memory_is_locked_ahead() -> None:
    assert locked(CountingMemory(), config(), available_bytes=7 * BLOCK_BYTES) == [BLOCK_BYTES] * 3


def test_what_was_locked_is_given_back_where_the_system_refuses_more() -> None:
    memory = CountingMemory(most_blocks=3)
    assert len(locked(memory, config())) == 3
    assert memory.freed == 1


def test_the_news_that_a_worker_died_is_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's signal handler raises it in whatever call the training process is in."""

    def dies(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr(torch, "empty", dies)
    with pytest.raises(RuntimeError, match="killed by signal"):
        CudaMemory.lock_block(CudaMemory.__new__(CudaMemory), 8)


def test_a_system_that_locks_no_more_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", refuses)
    assert CudaMemory.lock_block(CudaMemory.__new__(CudaMemory), 8) is None


@pytest.mark.parametrize(
    ("books", "seconds"), [({"host_alloc_time": {"total": 250_000}}, 0.25), ({}, None), ({"host_alloc_time": {}}, None)]
)
def test_the_allocator_counts_in_microseconds(
    books: dict[str, Any], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned.torch.cuda, "host_memory_stats_as_nested_dict", lambda: books)
    assert page_lock_s(CUDA) == seconds
    assert page_lock_s(torch.device("cpu")) is None


def test_a_torch_that_keeps_no_such_books_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pinned.torch.cuda, "host_memory_stats_as_nested_dict")
    assert page_lock_s(CUDA) is None
