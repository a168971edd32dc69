"""A process's own memory, and when it is time to end one that takes all RAM."""

import mmap
import os
from pathlib import Path

import pytest

from loadtune.host.memory import Ram
from loadtune.host.processes import RamGuard, anonymous_bytes, proportional_bytes

MIB = 1 << 20


@pytest.mark.parametrize("read", [anonymous_bytes, proportional_bytes])
def test_objects_count_and_a_file_that_is_mapped_does_not(tmp_path: Path, read):
    (tmp_path / "samples").write_bytes(b"x" * 64 * MIB)
    with (tmp_path / "samples").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = read(os.getpid())
        assert sum(mapped[at] for at in range(0, len(mapped), 4096))
        assert read(os.getpid()) - before < 16 * MIB
        kept = b"y" * 64 * MIB
        assert read(os.getpid()) - before > 48 * MIB
        del kept


def guard_over(available, held):
    """Both are read once as the guard is made, then at each look; a second passes in between."""
    moments, ram, own = iter(range(100)), iter(available), iter(held)
    return RamGuard(
        1,
        ram=lambda: Ram(total_bytes=1000, limit_bytes=1000, available_bytes=next(ram)),
        held=lambda pid, of: next(own),
        now=lambda: next(moments),
    )


def test_ram_that_runs_out_because_of_the_processes_is_told():
    guard = guard_over(available=[800, 400, 51, 49], held=[100, 820])
    assert [guard.look(), guard.look()] == [None, None]
    short = guard.look()
    assert (short.grown_bytes, short.available_bytes, short.limit_bytes) == (720, 49, 1000)


def test_ram_that_somebody_else_takes_ends_nothing():
    guard = guard_over(available=[800, 40], held=[100, 200])
    assert guard.look() is None
