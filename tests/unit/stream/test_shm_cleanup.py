"""Who belongs to a group, and whose shared memory may be taken away."""

import errno
import mmap
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from cli_rig import until

from loadtune.stream import shm_cleanup
from loadtune.stream.shm_cleanup import group_members, remove_segments
from loadtune.training import process


def entry(proc: Path, pid: int, state: str, group: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a) name) {state} 1 {group} {group} 0 -1")


def test_living_members_of_the_group_and_nobody_else(tmp_path: Path) -> None:
    entry(tmp_path, 10, "S", 10)
    entry(tmp_path, 11, "R", 10)
    entry(tmp_path, 12, "Z", 10)
    entry(tmp_path, 13, "S", 13)
    (tmp_path / "14").mkdir()  # gone between the two looks
    (tmp_path / "meminfo").touch()
    assert group_members(10, tmp_path) == {10, 11}
    assert group_members(10, tmp_path, dead=True) == {10, 11, 12}


def test_only_the_dead_lose_their_segments(tmp_path: Path) -> None:
    dead, alive = 2**22 + 1, os.getpid()  # above the kernel's largest id
    names = [f"torch_{dead}_1", f"torch_{dead}_2", f"torch_{dead}0_1", f"torch_{alive}_1", "other"]
    for name in names:
        (tmp_path / name).touch()
    used = tmp_path / f"torch_{dead}_3"  # of a process of another container, which has the same number there
    with used.open("wb") as file:
        file.truncate(mmap.PAGESIZE)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_segments([dead, alive], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[2:], used.name])


@pytest.mark.parametrize("forbidden", ["open", "unlink"])
def test_a_segment_of_another_user_is_left_alone_and_those_after_it_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: str
) -> None:
    dead, allowed = 2**22 + 1, getattr(Path, forbidden)
    foreign, own = tmp_path / f"torch_{dead}_1", tmp_path / f"torch_{dead + 1}_1"

    def as_another_user(path: Path, *given: object, **named: object) -> object:
        if path == foreign:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return allowed(path, *given, **named)

    foreign.touch(), own.touch()
    monkeypatch.setattr(Path, forbidden, as_another_user)
    remove_segments([dead, dead + 1], tmp_path)
    assert list(tmp_path.iterdir()) == [foreign]


HOLDER = """
import multiprocessing, time
held = multiprocessing.get_context("spawn").Semaphore()
print(held._semlock.name, flush=True)
time.sleep(60)
"""


def test_semaphores_of_a_killed_group_are_unlinked_however_slow_the_tracker_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    monkeypatch.setattr(process, "subprocess", Namespace(Popen=lambda *_, **__: held, DEVNULL=None))
    training = process.TrainingProcess(Namespace(kind="cpu", uuid=None), tmp_path / "log", tmp_path)
    with held.stdout as said:
        semaphore = Path("/dev/shm") / f"sem.{said.readline().strip().removeprefix('/')}"
    (tracker,) = group_members(held.pid) - {held.pid}
    os.kill(tracker, signal.SIGSTOP)
    monkeypatch.setattr(shm_cleanup, "_DEATH_S", 0.1)
    training.close()
    assert group_members(held.pid) == {tracker}
    os.kill(tracker, signal.SIGCONT)
    assert until(lambda: not semaphore.exists() and not group_members(held.pid))
