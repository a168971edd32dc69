"""A process tree that comes and goes: who is who in it, what it reads, its memory, and when it takes all RAM."""

import mmap
import os
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from loadtune.host import processes as processes_module
from loadtune.host.processes import WORKER_NAME, ProcessTree, RamGuard, proportional_bytes, scheduled_s
from loadtune.host.telemetry import Track
from loadtune.host.usable import Ram

MIB = 1 << 20


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
        return SimpleNamespace(rss=self.rss, shared=min(self.rss, 40))

    def io_counters(self):
        self.alive()
        return SimpleNamespace(read_bytes=self.read, read_chars=10 * self.read)


def worker(pid, **more):
    return FakeProcess(pid, name=WORKER_NAME, **more)


class World:
    """A process table in the test's hands; the training is process 1."""

    def __init__(self):
        self.pid, self.table = 1, {1: FakeProcess(1), 2: FakeProcess(2)}
        self.main = self.table[1]
        self.training = ProcessTree(lambda: self.pid)
        self.tracks, self.at_s = defaultdict(Track), 0.0

    def look(self):
        """Each figure as the sampler has it."""
        self.at_s += 0.1
        self.training.search()
        for figure, value in self.training.look().items():
            self.tracks[figure].add(self.at_s, value)
        return tuple(self.tracks[figure].values[-1] for figure in ProcessTree.figures)

    def look_at_reads(self):
        """Bytes since the look before, from storage and from files."""
        self.look()
        for figure, value in self.training.look_at_reads().items():
            self.tracks[figure].add(self.at_s, value)
        per_s = [self.tracks[figure].values[-1] for figure in ProcessTree.read_figures]
        return tuple(None if value is None else pytest.approx(0.1 * value) for value in per_s)


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setattr(processes_module, "_process", made.table.get)
    return made


def test_cpu_time_of_training_and_workers_is_cores(world):
    first = worker(11, cpu_s=50.0)
    world.main.below = [first]
    assert world.look() == (None, 200, None, 60)
    world.main.cpu_s, first.cpu_s = 0.1, 50.05
    assert world.look() == pytest.approx((1.5, 200, 0.5, 60))
    first.rss = 0  # a moment before it is gone
    assert world.look()[3] is None


def test_a_worker_is_known_by_the_name_it_gives_itself_after_its_start(world):
    child = FakeProcess(11)
    world.main.below = [child]
    world.look()
    assert world.training.workers == []
    child.process_name = WORKER_NAME
    world.look()
    assert world.look()[2] == 0.0
    assert world.training.workers == [child]


@pytest.mark.parametrize("waited_s", [(0.0, 50.01), (50.01, 50.01)])
def test_a_worker_that_ends_takes_nothing_back_and_counts_once(world, waited_s):
    """The kernel adds what it used to its parent's account of children, at once or a moment later."""
    first = worker(11, cpu_s=50.0)
    world.main.below = [first]
    world.look()
    used_s = 0.0
    for number, world.main.waited_s in enumerate(waited_s, 1):
        world.main.cpu_s, first.gone = 0.1 * number, True
        training, rss, workers, own = world.look()
        used_s += 0.1 * training
        assert (rss, workers, own) == (100, None, None)
    assert used_s == pytest.approx(0.2 + 0.01)


def test_processes_that_end_between_two_looks_count_where_they_were_waited_for(world):
    first = worker(11)
    world.main.below = [first]
    world.look()
    first.cpu_s, first.waited_s = 0.01, 0.07
    assert world.look()[0] == pytest.approx(0.8)


def test_a_replaced_training_process_is_followed_at_once_and_none_is_no_figure(world):
    world.main.cpu_s = 5.0
    world.look()
    world.main.cpu_s = 5.1
    world.look()
    world.pid, world.table[2].cpu_s = 2, 30.0
    assert world.look() == (None, 100, None, None)
    world.table[2].cpu_s = 30.1
    assert world.look()[0] == pytest.approx(1.0)
    for world.pid in (None, 99):
        assert world.look() == (None, None, None, None)
    world.pid = 1
    assert world.look()[1] == 100


def test_what_is_read_from_disk_is_not_counted_twice_as_a_worker_ends(world):
    """The kernel adds what an ended process has read to its parent's account, a moment later."""
    first = worker(11, read=1000)
    world.main.below = [first]

    def look():
        return world.look_at_reads()[0]

    assert look() is None
    first.read = 1500
    assert look() == 500
    first.gone = True
    assert look() == 0
    world.main.read = 1700  # its own 200 and the worker's 1500
    assert look() == 200
    world.pid, world.table[2].read = 2, 9000
    assert look() is None
    world.table[2].read = 9300
    assert look() == 300


def test_what_workers_read_from_files_is_theirs_alone(world):
    """Batches that the training process reads from their pipes are none, nor what it is charged for as they end."""
    main, first, later = world.main, worker(11), worker(12, read=50)
    seen = []
    looks = ((0, 100, [first]), (0, 300, [first]), (900, 400, both := [first, later]), (1800, 500, both))
    for main.read, first.read, main.below in (*looks, (2100, 500, [])):
        first.gone = later.gone = not main.below
        seen.append(world.look_at_reads()[1])
    assert seen == [None, 2000, None, 1000, None]


@pytest.mark.parametrize("is_told", [True, False])
def test_objects_count_and_a_file_that_is_mapped_does_not(tmp_path: Path, monkeypatch, is_told):
    """Also where the kernel does not tell how many share a page."""
    read = proportional_bytes
    if not is_told:
        monkeypatch.setattr(processes_module, "read_text", lambda file: "")
    (tmp_path / "samples").write_bytes(b"x" * 64 * MIB)
    with (tmp_path / "samples").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = read(os.getpid())
        assert sum(mapped[at] for at in range(0, len(mapped), 4096))
        assert read(os.getpid()) - before < 16 * MIB
        kept = b"y" * 64 * MIB
        assert read(os.getpid()) - before > 48 * MIB
        del kept


def test_a_process_that_ended_does_not_hide_what_the_others_ran(monkeypatch):
    told = {Path("/proc/7/schedstat"): "3000000000 500000000 12\n"}
    monkeypatch.setattr(processes_module, "read_text", lambda file: told.get(file, ""))
    assert scheduled_s([7, 8]) == (3.0, 0.5)


def guard_over(available, held):
    """Both are read once as the guard is made, then at each look; a second passes in between."""
    moments, ram, own = iter(range(100)), iter(available), iter(held)
    return RamGuard(
        1,
        ram=lambda: Ram(total_bytes=1000, limit_bytes=1000, available_bytes=next(ram)),
        held=lambda pid: next(own),
        now=lambda: next(moments),
    )


def test_ram_that_runs_out_because_of_the_processes_is_told_and_others_end_nothing():
    guard = guard_over(available=[800, 400, 51, 49], held=[100, 820])
    assert [guard.look(), guard.look()] == [None, None]
    grown_bytes, ram = guard.look()
    assert (grown_bytes, ram.available_bytes, ram.limit_bytes) == (720, 49, 1000)
    assert guard_over(available=[800, 40], held=[100, 200]).look() is None
