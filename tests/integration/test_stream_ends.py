"""How a SwitchingLoader ends: with its script, by `break`, and after processes were killed, stopped or forked.

Run as a script this file serves `Scripts`: it has imported torch and forks a process for each script that is asked for.
"""

import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loadtune.stream.switching import SwitchingLoader

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")

SIZE = 4000
LIMIT_S = 30.0
"""For what happens in a moment, on a machine that does much else."""


class Numbers(Dataset):
    """Sample i is i, in a tensor of some kilobytes."""

    def __init__(self, size, sample_s=0.0):
        self.size, self.sample_s = size, sample_s

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.sample_s:
            time.sleep(self.sample_s)
        return torch.full((256,), index)


class RaisesAmongThree(Numbers):
    """One of three workers cannot read sample 100 and those after it."""

    def __getitem__(self, index):
        worker = get_worker_info()
        if worker is not None and worker.num_workers == 3 and index >= 100:
            raise OSError("no more files may be open")
        return super().__getitem__(index)


class NotPicklable(Numbers):
    def __init__(self, size):
        super().__init__(size)
        self.lock = threading.Lock()


def slow_among_three(worker_id):
    if get_worker_info().num_workers == 3:
        time.sleep(3.0)


def raises_among_three(worker_id):
    if get_worker_info().num_workers == 3:
        raise OSError("no such device")


# What tests share


def until(condition, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


def living_children():
    """Process ids; those of multiprocessing's own helpers are not among them."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            helper = any("multiprocessing" in word for word in child.cmdline())
            if not helper and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child.pid)
        except psutil.NoSuchProcess:
            pass
    return found


def gone(pids):
    return not any(map(is_alive, pids))


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def segments(pids):
    return [path.name for pid in pids for path in Path("/dev/shm").glob(f"torch_{pid}_*")]


def firsts(batch):
    return batch[:, 0].tolist()


def rest_of(iterator):
    return [number for batch in iterator for number in firsts(batch)]


def took_over(loader):
    switches = loader.counters.switches
    return len(switches) > 0 and switches[-1].delivers_s is not None


def read(iterator, seen, condition, step_s=0.01):
    """Iterate until it holds, and fail if the epoch ends before. ``step_s``: gives starting workers time."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        seen.extend(firsts(next(iterator)))
        time.sleep(step_s)


# Scripts that end


def run_script(start_method, state, end, folder):
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
    switching = SwitchingLoader(loader)
    iterator = iter(switching)
    next(iterator)
    if state == "persistent":
        iterator = iter(switching)
    if state == "withdrawn":
        switching.switch(num_workers=2)
        read(iterator, [], lambda: took_over(switching))
        children = living_children()
        os.kill(children[-1], signal.SIGKILL)
        read(iterator, [], lambda: switching.withdrawn)
    elif state == "pending":
        switching.switch(num_workers=3)
        next(iterator)
        assert switching.counters.switches[-1].start_s is None
    else:
        switching.switch(num_workers=2)
        read(iterator, [], lambda: took_over(switching))
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    (folder / "children").write_text(json.dumps(children))
    if end == "in a global":
        globals()["kept"] = iterator
        next(iterator)
        return
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise LookupError("the script's own")
    if end == "interrupt":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in iterator:
            pass
    next(iterator)


def run_fork(kind, folder):
    """A process that was forked in mid-epoch ends; the epoch goes on."""
    switching = SwitchingLoader(DataLoader(Numbers(400, 0.001), batch_size=4, num_workers=2))
    iterator, seen = iter(switching), []
    seen.extend(firsts(next(iterator)))
    if kind == "on trial":
        switching.switch(num_workers=3)
        read(iterator, seen, lambda: took_over(switching))
    child = os.fork()
    if child == 0:
        del iterator
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert seen + rest_of(iterator) == list(range(400))
    assert not switching.withdrawn


def serve():
    """Fork a process for each line, and answer with its exit status."""
    gc.freeze()  # else the end of each process goes through all that torch's import made
    for line in sys.stdin:
        kind, folder, *arguments = json.loads(line)
        folder = Path(folder)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            (folder / "tmp").mkdir()
            os.environ["TMPDIR"] = str(folder / "tmp")
            tempfile.tempdir = None
            {"script": run_script, "fork": run_fork}[kind](*arguments, folder)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


class Scripts:
    """Runs scripts in processes of their own, without waiting for the import of torch each time."""

    def __init__(self, folders):
        self._folders = folders
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, kind, *arguments):
        """(Exit status, folder of what it wrote, seconds)"""
        begun = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="ends-", dir=self._folders))  # short: sockets lie in it
        print(json.dumps([kind, str(folder), *arguments]), file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline())
        return status, folder, time.monotonic() - begun

    def close(self):
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


@pytest.fixture(scope="module")
def scripts():
    with tempfile.TemporaryDirectory(prefix="ends-", dir="/tmp") as folder:
        made = Scripts(folder)
        yield made
        made.close()


ENDS = {
    "end": (0, ""),
    "in a global": (0, ""),
    "exit": (3, ""),
    "raise": (1, "LookupError: the script's own"),
    "interrupt": (-signal.SIGINT, "KeyboardInterrupt"),
}
CASES = [("fork", "switched", end) for end in ENDS]
CASES += [("fork", state, end) for state in ("pending", "persistent") for end in ("end", "interrupt")]
CASES += [(method, "pending", "interrupt") for method in ("forkserver", "spawn")]


@pytest.mark.parametrize(("method", "state", "end"), CASES)
def test_a_script_ends_and_leaves_nothing(scripts, method, state, end):
    status, folder, seconds = scripts.run("script", method, state, end)
    expected_status, last_line = ENDS[end]
    errors = (folder / "stderr").read_text()
    assert errors.strip().endswith(last_line), errors
    assert (errors == "") == (last_line == ""), errors
    # A worker that is asked for a batch just then may add what it says of the lost connection, as in torch.
    assert errors.count("Traceback") == (1 if last_line else 0) or end == "interrupt", errors
    assert status == expected_status
    children = json.loads((folder / "children").read_text())
    assert children
    assert until(lambda: gone(children), 5.0)
    assert until(lambda: not any((folder / "tmp").iterdir()), 5.0), list((folder / "tmp").iterdir())
    assert segments(children) == []
    assert seconds < LIMIT_S


def test_killed_workers_leave_no_temporary_file(scripts):
    status, folder, _ = scripts.run("script", "fork", "withdrawn", "end")
    # Another worker may print that the training process hung up on it: the death is raised in the middle of its batch.
    assert status == 0, (folder / "stderr").read_text()
    # torch itself may leave a file `tmp…` of its test for open files, where the signal of the death comes in between.
    assert list((folder / "tmp").glob("pymp-*")) == []
    assert segments(json.loads((folder / "children").read_text())) == []


# A process forked from the training process


@pytest.mark.parametrize("kind", ["own", "on trial"])
def test_a_process_that_was_forked_does_not_disturb_the_workers(scripts, kind):
    status, folder, _ = scripts.run("fork", kind)
    assert status == 0, (folder / "stderr").read_text()


# The end of a loop


@pytest.fixture
def others():
    """Children that were there before; all others are gone when the test ends."""
    gc.collect()
    before = living_children()
    yield before
    gc.collect()
    assert until(lambda: set(living_children()) <= set(before))


def workers(others):
    return [pid for pid in living_children() if pid not in others]


def test_break_ends_the_workers_as_in_torch(others):
    loader = DataLoader(Numbers(400), batch_size=4, num_workers=2)
    switching = SwitchingLoader(loader)
    for each in (loader, switching):
        for _ in each:
            mine = workers(others)
            assert len(mine) == 2
            break
        assert until(lambda: workers(others) == [])
        assert segments(mine) == []
    iterator = iter(switching)
    switching.switch(num_workers=3)
    read(iterator, [], lambda: took_over(switching))
    switching.switch(num_workers=1)  # whose worker is starting
    del iterator
    assert until(lambda: workers(others) == [])


@pytest.mark.parametrize("end", ["close", "drop"])
def test_persistent_workers_stay_after_break_as_in_torch(others, end):
    loader = DataLoader(Numbers(400), batch_size=4, num_workers=2, persistent_workers=True)
    for kind in (lambda: loader, lambda: SwitchingLoader(loader)):
        each = kind()
        for _ in each:
            mine = workers(others)
            break
        for batch in each:
            assert firsts(batch) == [0, 1, 2, 3]
            break
        assert set(workers(others)) == set(mine)
        assert len(mine) == 2
        if each is loader:
            loader._iterator = None
        elif end == "close":
            each.close()
        else:
            del each
        assert until(lambda: workers(others) == [])


# Killed and stopped workers, and settings that cannot load


def expect_all(seen):
    assert seen == list(range(SIZE))


@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_worker_on_trial_costs_no_sample(others, own, seed):
    chance = random.Random(f"{own} {seed}")
    switching = SwitchingLoader(DataLoader(Numbers(SIZE), batch_size=4, num_workers=own))
    iterator, seen = iter(switching), []
    before = workers(others)
    tried = chance.choice([1, 3])
    switching.switch(num_workers=tried, prefetch_factor=chance.choice([1, 3]))
    read(iterator, seen, lambda: took_over(switching))
    for _ in range(chance.randrange(10)):
        seen.extend(firsts(next(iterator)))
    time.sleep(chance.random() * 0.01)
    victim = chance.choice([pid for pid in workers(others) if pid not in before])
    os.kill(victim, signal.SIGKILL)
    seen.extend(rest_of(iterator))
    expect_all(seen)
    assert [each.settings.num_workers for each in switching.withdrawn] == [tried]
    assert switching.settings == switching.own
    assert segments([victim]) == []


def test_a_worker_killed_while_it_drains_costs_no_sample(others):
    """Two switches overlap: the DataLoader's own settings load what both had not delivered."""
    switching = SwitchingLoader(DataLoader(Numbers(SIZE), batch_size=4))
    iterator, seen = iter(switching), []
    switching.switch(num_workers=2, prefetch_factor=50)
    read(iterator, seen, lambda: took_over(switching))
    first = workers(others)
    switching.switch(num_workers=1)
    read(iterator, seen, lambda: switching.counters.switches[-1].start_s is not None)
    assert not took_over(switching)
    os.kill(first[0], signal.SIGKILL)
    read(iterator, seen, lambda: switching.withdrawn)
    assert [each.settings.num_workers for each in switching.withdrawn] == [2]
    expect_all(seen + rest_of(iterator))
    assert switching.settings == switching.own


def test_a_stopped_worker_on_trial_counts_as_hung(others):
    switching = SwitchingLoader(DataLoader(Numbers(SIZE), batch_size=4), hang_s=1.0)
    iterator, seen = iter(switching), []
    switching.switch(num_workers=2)
    read(iterator, seen, lambda: took_over(switching))
    stopped = workers(others)[0]
    os.kill(stopped, signal.SIGSTOP)
    seen.extend(rest_of(iterator))
    expect_all(seen)
    assert [each.reason for each in switching.withdrawn] == ["its workers gave no batch for 1 s"]
    assert until(lambda: gone([stopped]))


@pytest.fixture
def set_start_method():
    before = multiprocessing.get_start_method()
    yield lambda method: multiprocessing.set_start_method(method, force=True)
    multiprocessing.set_start_method(before, force=True)


CANNOT_LOAD = {
    "the dataset raises": ("fork", RaisesAmongThree(SIZE), {}, OSError),
    "worker_init_fn raises": ("fork", Numbers(SIZE), {"num_workers": 1, "worker_init_fn": raises_among_three}, OSError),
    "the dataset cannot be pickled": ("spawn", NotPicklable(SIZE), {}, TypeError),
}


@pytest.mark.parametrize("from_the_start", [False, True])
@pytest.mark.parametrize("what", CANNOT_LOAD)
@pytest.mark.filterwarnings("ignore")  # torch's, of the same error
def test_settings_that_cannot_load_are_withdrawn(set_start_method, others, what, from_the_start):
    start_method, dataset, arguments, error = CANNOT_LOAD[what]
    set_start_method(start_method)
    switching = SwitchingLoader(DataLoader(dataset, batch_size=4, **arguments))
    if from_the_start:
        switching.switch(num_workers=3)
    iterator, seen = iter(switching), []
    if not from_the_start:
        switching.switch(num_workers=3)
    read(iterator, seen, lambda: switching.withdrawn)
    expect_all(seen + rest_of(iterator))
    assert [type(each.error) for each in switching.withdrawn] == [error]
    assert switching.settings == switching.own
    expect_all(rest_of(switching))


@pytest.mark.parametrize("kind", ["torch", "own", "own again"])
def test_the_death_of_a_worker_of_the_caller_is_raised_as_in_torch(others, kind):
    loader = DataLoader(Numbers(100_000), batch_size=4, num_workers=1)
    switching = SwitchingLoader(loader)
    iterator, seen = iter(loader if kind == "torch" else switching), []
    seen.extend(firsts(next(iterator)))
    if kind == "own again":
        for num_workers in (2, 1):
            switching.switch(num_workers=num_workers)
            read(iterator, seen, lambda: took_over(switching), step_s=0.0)
        assert until(lambda: len(workers(others)) == 1)
    victim = workers(others)[0]
    with pytest.raises(RuntimeError, match=f"DataLoader worker .pid {victim}. is killed by signal"):  # noqa: PT012
        os.kill(victim, signal.SIGKILL)
        until(lambda: False, 5.0)  # raised wherever the loop is
    assert switching.withdrawn == []


# Many switches


def usage(others):
    process = psutil.Process()
    gc.collect()
    assert until(lambda: not any(thread.name == "loadtune-end-workers" for thread in threading.enumerate()))
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "processes": len(workers(others)),
        "megabytes": process.memory_info().rss / 1e6,
    }


def test_many_switches_leave_nothing_behind(others):
    chance = random.Random(1)
    switching = SwitchingLoader(DataLoader(Numbers(10_000_000), batch_size=4))
    iterator, seen, num_read = iter(switching), [], 0
    early = None
    for number in range(60):
        if number == 20:
            switching.switch(num_workers=1, prefetch_factor=1)
            read(iterator, seen, lambda: took_over(switching), step_s=0.0)
            early = usage(others)
        changes = {"num_workers": chance.choice([0, 0, 1, 1, 2, 3]), "prefetch_factor": chance.randrange(1, 4)}
        if switching.switch(**changes) is not None and chance.random() < 0.8:  # else the next comes while this starts
            read(iterator, seen, lambda: took_over(switching), step_s=0.0)
        assert seen == list(range(num_read, num_read + len(seen)))
        num_read += len(seen)
        seen.clear()
    switching.switch(num_workers=1, prefetch_factor=1)
    read(iterator, seen, lambda: took_over(switching))
    late = usage(others)
    assert switching.withdrawn == []
    for what, leeway in {"descriptors": 4, "threads": 1, "processes": 0, "megabytes": 20}.items():
        assert late[what] <= early[what] + leeway, (early, late)


if __name__ == "__main__":
    serve()
