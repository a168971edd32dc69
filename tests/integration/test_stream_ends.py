"""How a switching iterator ends: with its script, by `break`, and after processes were killed, stopped or forked.

Run as a script this file runs all `RUNS`, each in a process of its own.
"""

import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cli_rig import is_alive, segments, until
from forked import finished
from switching_rig import Numbers, Switching, numbers
from torch.utils.data import DataLoader, get_worker_info

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")

SIZE = 4000
LIMIT_S = 30.0
"""For what happens in a moment, on a machine that does much else."""


def slow_among_three(worker_id):
    if get_worker_info().num_workers == 3:
        time.sleep(3.0)


# What tests share


def living_children():
    """Process ids; those of multiprocessing's own helpers are not among them."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if is_alive(child.pid) and not any("multiprocessing" in word for word in child.cmdline()):
                found.append(child.pid)
    return found


def read(iterator, seen, condition, step_s=0.01):
    """Iterate until it holds, and fail if the epoch ends before. ``step_s``: gives starting workers time."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        seen.extend(numbers([next(iterator)]))
        time.sleep(step_s)


# Scripts that end


def run_script(folder, start_method, state, end):
    """The script: ends as `end` says while the loader is in `state`."""
    multiprocessing.set_start_method(start_method)
    own = 1 if start_method == "fork" else 0  # where a start takes long, only one has to be waited for
    loader = DataLoader(
        Numbers(100_000, 0.001),
        batch_size=4,
        num_workers=own,
        worker_init_fn=slow_among_three,
        persistent_workers=state == "persistent",
    )
    switching = Switching(loader)
    iterator = iter(switching)
    next(iterator)
    if state == "persistent":
        iterator = iter(switching)
    switching.switch(3 if state == "pending" else 2)
    if state == "pending":
        next(iterator)
        assert switching.is_starting()
    else:
        read(iterator, [], switching.took_over)
    if state == "withdrawn":
        os.kill(living_children()[-1], signal.SIGKILL)
        read(iterator, [], lambda: switching.withdrawn)
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    (folder / "children").write_text(json.dumps(children))
    if end == "interrupt":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in iterator:
            pass
    next(iterator)


def run_fork(folder):
    """Processes that were forked in mid-epoch end, with the user's workers and with others; the epoch goes on."""
    switching = Switching(DataLoader(Numbers(400, 0.001), batch_size=4, num_workers=2))
    iterator, seen = iter(switching), []
    for num_workers in (2, 3):
        switching.switch(num_workers)
        read(iterator, seen, switching.took_over)
        child = os.fork()
        if child == 0:
            del iterator
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
    assert seen + numbers(iterator) == list(range(400))
    assert not switching.withdrawn


ENDS = {"end": (0, ""), "interrupt": (-signal.SIGINT, "KeyboardInterrupt")}
"""Others: in `test_modes.py`."""
CASES = [("fork", state, end) for state in ("switched", "pending", "persistent") for end in ENDS]
CASES += [(method, "pending", "interrupt") for method in ("forkserver", "spawn")]
RUNS = {" ".join(case): (run_script, *case) for case in CASES}
RUNS |= {"withdrawn": (run_script, "fork", "withdrawn", "end"), "forked": (run_fork,)}


def run_all(folders):
    """Fork a process for each, so that torch is imported once, and note how it ended."""
    gc.freeze()  # else the end of each process goes through all that torch's import made
    for name, (run, *arguments) in RUNS.items():
        folder = Path(folders) / name
        (folder / "tmp").mkdir(parents=True)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for descriptor, file in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
                os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), descriptor)
            os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
            run(folder, *arguments)
            return
        (folder / "status").write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


@pytest.fixture(scope="module")
def ended():
    """The folder of each run, its exit status, and what it wrote on stderr."""
    with tempfile.TemporaryDirectory(prefix="ends-", dir="/tmp") as folders:  # short: sockets lie in it
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        assert finished([sys.executable, __file__, folders], Path(folders) / "all", env=path).returncode == 0
        found = [Path(folders) / name for name in RUNS]
        yield {each.name: (each, int((each / "status").read_text()), (each / "stderr").read_text()) for each in found}


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_script_ends_and_leaves_nothing(ended, case):
    folder, status, errors = ended[" ".join(case)]
    end = case[-1]
    expected_status, last_line = ENDS[end]
    # A worker that is asked for a batch just then may add what it says of the lost connection, as in torch.
    assert last_line in ["", *errors.splitlines()], errors
    assert (errors == "") == (last_line == ""), errors
    assert errors.count("Traceback") == (1 if last_line else 0) or end == "interrupt", errors
    assert status == expected_status
    children = json.loads((folder / "children").read_text())
    assert children
    assert until(lambda: not any(map(is_alive, children)), 5.0)
    assert until(lambda: not any((folder / "tmp").iterdir()), 5.0), list((folder / "tmp").iterdir())
    assert segments(children) == []


def test_killed_workers_leave_no_temporary_file(ended):
    folder, status, errors = ended["withdrawn"]
    # Another worker may print that the training process hung up on it: the death is raised in the middle of its batch.
    assert status == 0, errors
    # torch itself may leave a file `tmp…` of its test for open files, where the signal of the death comes in between.
    assert list((folder / "tmp").glob("pymp-*")) == []
    assert segments(json.loads((folder / "children").read_text())) == []


def test_a_process_that_was_forked_does_not_disturb_the_workers(ended):
    _, status, errors = ended["forked"]
    assert status == 0, errors


# The end of a loop


@pytest.fixture
def others():
    """Children that were there before; all others are gone when the test ends."""
    gc.collect()
    before = living_children()
    yield before
    gc.collect()
    assert until(lambda: set(living_children()) <= set(before), LIMIT_S)


def workers(others):
    return [pid for pid in living_children() if pid not in others]


@pytest.mark.parametrize("persistent", [False, True])
def test_break_ends_the_workers_unless_they_are_persistent_as_in_torch(others, persistent):
    loader = DataLoader(Numbers(400), batch_size=4, num_workers=2, persistent_workers=persistent)
    for each in (loader, Switching(loader)):
        for _ in each:
            mine = workers(others)
            assert len(mine) == 2
            break
        if persistent:
            for batch in each:
                assert numbers([batch]) == [0, 1, 2, 3]
                break
            assert set(workers(others)) == set(mine)
            loader._iterator = None
        assert until(lambda: workers(others) == [], LIMIT_S)
        assert segments(mine) == []


def test_workers_that_are_starting_end_with_the_iterator(others):
    switching = Switching(DataLoader(Numbers(400), batch_size=4, num_workers=2))
    iterator = iter(switching)
    switching.switch(3)
    read(iterator, [], switching.took_over)
    switching.switch(1)
    del iterator
    assert until(lambda: workers(others) == [], LIMIT_S)


# Killed workers


def test_a_worker_killed_while_it_drains_costs_no_sample(others):
    """Two switches overlap: the training process loads what both had not delivered."""
    loader = DataLoader(Numbers(SIZE), batch_size=4)
    loader.prefetch_factor = 50
    switching = Switching(loader)
    iterator, seen = iter(switching), []
    switching.switch(2)
    read(iterator, seen, switching.took_over)
    first = workers(others)
    switching.switch(1)
    read(iterator, seen, lambda: not switching.is_starting())
    assert not switching.took_over()
    os.kill(first[0], signal.SIGKILL)
    read(iterator, seen, lambda: switching.withdrawn)
    assert [each.num_workers for each in switching.withdrawn] == [2]
    assert seen + numbers(iterator) == list(range(SIZE))
    assert segments(first) == []
    assert iterator.num_workers == iterator.own


@pytest.mark.parametrize("switches", [(), (2, 1)])
def test_the_death_of_a_worker_of_the_caller_is_raised_as_in_torch(others, switches):
    switching = Switching(DataLoader(Numbers(100_000), batch_size=4, num_workers=1))
    iterator = iter(switching)
    next(iterator)
    for num_workers in switches:
        switching.switch(num_workers)
        read(iterator, [], switching.took_over, step_s=0.0)
    assert until(lambda: len(workers(others)) == 1, LIMIT_S)
    victim = workers(others)[0]
    with pytest.raises(RuntimeError, match=f"DataLoader worker .pid {victim}. is killed by signal"):  # noqa: PT012
        os.kill(victim, signal.SIGKILL)
        until(lambda: False, 5.0)  # raised wherever the loop is
    assert switching.withdrawn == []


# Many switches


def usage(others):
    process = psutil.Process()
    gc.collect()
    assert until(lambda: not any(thread.name == "loadtune-end-workers" for thread in threading.enumerate()), LIMIT_S)
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "processes": len(workers(others)),
        "megabytes": process.memory_info().rss / 1e6,
    }


def test_many_switches_leave_nothing_behind(others):
    chance = random.Random(1)
    switching = Switching(DataLoader(Numbers(10_000_000), batch_size=4))
    iterator, seen, num_read, early = iter(switching), [], 0, None
    for number in range(60):
        if number == 20:
            switching.switch(1)
            read(iterator, seen, switching.took_over, step_s=0.0)
            early = usage(others)
        switching.switch(chance.choice([0, 0, 1, 1, 2, 3]))
        if chance.random() < 0.8:  # else the next comes while this starts
            read(iterator, seen, switching.took_over, step_s=0.0)
        assert seen == list(range(num_read, num_read + len(seen)))
        num_read += len(seen)
        seen.clear()
    switching.switch(1)
    read(iterator, seen, switching.took_over)
    late = usage(others)
    assert switching.withdrawn == []
    for what, leeway in {"descriptors": 4, "threads": 1, "processes": 0, "megabytes": 20}.items():
        assert late[what] <= early[what] + leeway, (early, late)


if __name__ == "__main__":
    run_all(sys.argv[1])
