"""A process tree that comes and goes, who is who in it, and what it reads from disk."""

from types import SimpleNamespace

import psutil
import pytest

from loadtune.host import processes as processes_module
from loadtune.host.processes import WORKER_NAME, ProcessTree, Reads
from loadtune.host.sensing import Count


class FakeProcess:
    """As much of psutil's process as the tree needs; ``gone`` makes every call fail."""

    def __init__(self, pid, cpu_s=0.0, rss=100, name="python", read=0):
        self.pid, self.cpu_s, self.rss, self.read = pid, cpu_s, rss, read
        self.process_name, self.waited_s = name, 0.0
        self.below, self.gone = [], False

    def alive(self):
        if self.gone:
            raise psutil.NoSuchProcess(self.pid)

    def children(self, recursive):
        self.alive()
        return list(self.below)

    def name(self):
        self.alive()
        return self.process_name

    def cpu_times(self):
        self.alive()
        return SimpleNamespace(user=self.cpu_s, system=0.0, children_user=self.waited_s, children_system=0.0)

    def memory_info(self):
        return SimpleNamespace(rss=self.rss, shared=0)

    def io_counters(self):
        self.alive()
        return SimpleNamespace(read_bytes=self.read, read_chars=10 * self.read)


def worker(pid, **more):
    return FakeProcess(pid, name=WORKER_NAME, **more)


@pytest.fixture
def world(monkeypatch):
    """A process table in the test's hands; the training is process 1."""

    made = SimpleNamespace(pid=1, table={1: FakeProcess(1), 2: FakeProcess(2)})
    monkeypatch.setattr(processes_module, "_process", made.table.get)
    made.training = ProcessTree(lambda: made.pid)
    return made


def test_cpu_time_of_bench_and_workers_is_cores(world):
    main, first = world.table[1], worker(11, cpu_s=50.0)
    main.below = [first]
    seen = world.training.look(0.0)
    assert (seen["training_cpu_cores"], seen["training_rss_bytes"]) == (None, 200)
    main.cpu_s, first.cpu_s = 0.1, 50.05
    seen = world.training.look(0.1)
    assert seen["training_cpu_cores"] == pytest.approx(1.5)
    assert seen["workers_cpu_cores"] == pytest.approx(0.5)


def test_a_worker_is_known_by_the_name_it_gives_itself_after_its_start(world):
    child = FakeProcess(11)
    world.table[1].below = [child]
    world.training.look(0.0)
    assert world.training.of("worker") == []
    child.process_name = WORKER_NAME
    assert world.training.look(0.6)["workers_cpu_cores"] == 0.0
    assert (world.training.of("worker"), world.training.of("other")) == ([child], [])


@pytest.mark.parametrize("waited_s", [(0.0, 50.01), (50.01, 50.01), (0.0, 0.0)])
def test_a_worker_that_ends_takes_nothing_back_and_counts_once(world, waited_s):
    """The kernel adds what it used to its parent's account of children, at once or a moment later; or nobody waits."""
    main, first = world.table[1], worker(11, cpu_s=50.0)
    main.below = [first]
    world.training.look(0.0)
    used_s = 0.0
    for number, main.waited_s in enumerate(waited_s, 1):
        main.cpu_s, first.gone = 0.1 * number, True
        seen = world.training.look(0.1 * number)
        used_s += 0.1 * seen["training_cpu_cores"]
        assert (seen["workers_cpu_cores"], seen["training_rss_bytes"]) == (None, 100)
    assert used_s == pytest.approx(0.2 + max(0.0, waited_s[1] - 50.0))


def test_processes_that_end_between_two_looks_count_where_they_were_waited_for(world):
    first = worker(11)
    world.table[1].below = [first]
    world.training.look(0.0)
    first.cpu_s, first.waited_s = 0.01, 0.07
    seen = world.training.look(0.1)
    assert (seen["training_cpu_cores"], seen["workers_cpu_cores"]) == pytest.approx((0.8, 0.1))


def test_a_replaced_bench_is_followed_at_once(world):
    world.training.look(0.0)
    world.pid, world.table[2].cpu_s = 2, 30.0
    seen = world.training.look(0.1)
    assert (seen["training_cpu_cores"], seen["training_rss_bytes"]) == (None, 100)
    world.table[2].cpu_s = 30.1
    assert world.training.look(0.2)["training_cpu_cores"] == pytest.approx(1.0)


@pytest.mark.parametrize("pid", [None, 99])
def test_no_bench_is_no_figure(world, pid):
    world.pid = pid
    assert set(world.training.look(0.0).values()) == {None}
    world.pid = 1
    assert world.training.look(1.0)["training_rss_bytes"] == 100


def test_what_is_read_from_disk_is_not_counted_twice_as_a_worker_ends(world):
    """The kernel adds what an ended process has read to its parent's account, a moment later."""
    main, first = world.table[1], worker(11, read=1000)
    main.below = [first]
    disk = Reads(world.training)

    def look(now_s):
        world.training.look(now_s)
        return disk.look(now_s)["disk_read_bytes_per_s"]

    assert look(0.0) == Count(1000)
    first.read = 1500
    assert look(1.0) == Count(1500)
    first.gone = True
    assert look(2.0) == Count(1500)
    main.read = 1700  # its own 200 and the worker's 1500
    assert look(3.0) == Count(1700)
    world.pid = 2
    assert look(4.0) is None


def test_what_workers_read_from_files_is_theirs_alone(world):
    """Batches that the training process reads from their pipes are none, nor what it is charged for as they end."""
    main, first, later = world.table[1], worker(11), worker(12, read=50)
    reads, seen = Reads(world.training), []
    both = [first, later]
    looks = ((0.0, 0, 100, [first]), (1.0, 0, 300, [first]), (2.0, 900, 400, both := [first, later]))
    for now_s, main.read, first.read, main.below in (*looks, (3.0, 1800, 500, both), (4.0, 2100, 500, [])):
        first.gone = later.gone = not main.below
        world.training.look(now_s)
        seen.append(reads.look(now_s)["file_read_bytes_per_s"])
    assert seen == [Count(1000), Count(3000), None, Count(5500), None]
