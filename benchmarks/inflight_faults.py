"""Faults in the tuner, in its workers and in a training that it tunes: what the loop sees is the same as without it.

    python benchmarks/inflight_faults.py [FAULT ...]

Each fault happens in two processes of its own: one loads with torch alone, the other switches from the user's workers
to three at the fifth batch. Both log what their loop sees. Printed is one line of JSON for each fault: ``same``, and
what the two processes logged and how they ended. Processes are forked, so that torch is imported once, and end as a
script does.
"""

import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.utils.data.dataloader as torchs
from switched import Switched
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from loadtune.inflight import hook, iterator, readings, tuner, words
from loadtune.stream import pool

BATCHES, SIZE, AT, OTHERS = 24, 4, 4, 3
LIMIT_S = 40
"""For one process; then it is killed."""


class Rows(Dataset):
    """Samples are their index. ``fault``: what happens where a worker that the user did not ask for reads one.
    ``happens``: where the sample at ``at`` is read, by whomever."""

    def __init__(self, fault=None, at=None, happens=None):
        self.fault, self.at, self.happens = fault, at, happens or bad_sample

    def __len__(self):
        return BATCHES * SIZE

    def __getitem__(self, index):
        if self.fault is not None and in_other_worker():
            self.fault()
        if index == self.at:
            self.happens(index)
        return torch.tensor([index, index * index])


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(range(worker.id, BATCHES * SIZE, worker.num_workers))


class Job:
    """One process of one fault."""

    def __init__(self, log, tuned):
        self.log, self.tuned = log, tuned

    def see(self, what):
        print(what.tolist() if isinstance(what, torch.Tensor) else what, file=self.log, flush=True)

    def loader(self, fault=None, at=None, **settings):
        return DataLoader(Rows(fault, at), SIZE, **{"num_workers": 1, "shuffle": at is None} | settings)

    def loop(self, loader, act=lambda number: None, epochs=1):
        for _ in range(epochs):
            for number, batch in enumerate(loader):
                self.see(batch)
                act(number)
        self.see(random.random())
        self.see(torch.rand(1))

    def patched(self, owner, name, value):
        """Only where the loader is tuned."""
        if self.tuned:
            setattr(owner, name, value)


def bad_sample(index):
    raise ValueError(f"bad sample {index}")


def in_other_worker():
    worker = get_worker_info()
    return worker is not None and worker.num_workers == OTHERS and worker.id == 1


def broken(*_, **__):
    raise AssertionError("broken on purpose")


def on_others(fault):
    """A worker_init_fn."""
    return lambda _: fault() if in_other_worker() else None


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_me_with_a_lock():
    """In the moment in which its worker asks whether it is to end. torch waits for that lock."""
    frame = sys._getframe()
    while "done_event" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["done_event"]._cond.acquire()
    kill_me()


def stop_me():
    os.kill(os.getpid(), signal.SIGSTOP)


def hang():
    time.sleep(1000)


def no_memory():
    raise MemoryError("cannot allocate")


def fill_shm():
    """What a worker writes from now on does not fit."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def like_cuda():
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. Use the 'spawn' start method")


FAULTS = {}
ALIKE = {}
"""Faults that are the same job where no loader is tuned: it runs once."""


def fault(function):
    FAULTS[function.__name__] = function
    return function


def each(prefix, cases, *, tuned_only=True):
    """A fault for each of several cases of one function. ``tuned_only``: without a tuner nothing of it happens."""

    def add(function):
        for name, case in cases.items():
            FAULTS[f"{prefix}_{name}"] = lambda job, case=case: function(job, case)
            if tuned_only:
                ALIKE[f"{prefix}_{name}"] = prefix
        return function

    return add


WORKER_FAULTS = {
    "is_killed": kill_me, "exits": lambda: os._exit(3), "raises": broken, "has_no_memory": no_memory,
    "hangs": hang, "is_stopped": stop_me, "fills_shm": fill_shm, "cannot_use_cuda": like_cuda,
    "raises_exit": lambda: sys.exit(4), "is_killed_with_a_lock": kill_me_with_a_lock,
}  # fmt: skip


# Other workers


@each("other_worker", WORKER_FAULTS)
def other_worker(job, happens):
    job.loop(job.loader(happens))


@each("starting_worker", {name: WORKER_FAULTS[name] for name in ("is_killed", "exits", "raises", "hangs")})
def starting_worker(job, happens):
    job.loop(job.loader(worker_init_fn=on_others(happens)))


@each("first_worker", {name: WORKER_FAULTS[name] for name in ("is_killed", "raises", "hangs", "cannot_use_cuda")})
def first_worker(job, happens):
    """Where the user has none."""
    job.loop(job.loader(happens, num_workers=0))


@fault
def batch_cannot_be_pickled(job):
    def collate(samples):
        return (lambda: None) if in_other_worker() else torch.stack(samples)

    job.loop(job.loader(collate_fn=collate))


@fault
def worker_reads_other_samples(job):
    def collate(samples):
        return torch.stack(samples) + in_other_worker()

    job.loop(job.loader(collate_fn=collate, num_workers=0))


@fault
def dataset_cannot_be_pickled(job):
    torch.multiprocessing.set_start_method("spawn", force=True)
    loader = job.loader(num_workers=0)
    loader.dataset.lock = threading.Lock()
    job.loop(loader)


@fault
def dataset_changes(job):
    loader = job.loader(num_workers=0)

    def change(number):
        if number == 10:
            loader.dataset.at = -1

    job.loop(loader, change)


# What the system refuses


@fault
def no_descriptors(job):
    """Once the user's workers have begun."""
    real = tuner.Tuner.begin

    def begin(self, watched):
        used, most = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 5, most))
        real(self, watched)

    job.patched(tuner.Tuner, "begin", begin)
    job.loop(job.loader())


@each("no_process", {"second": 2, "third": 3})
def no_process(job, which):
    real, asked = os.fork, []

    def fork():
        asked.append(1)
        if len(asked) == which:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real()

    job.patched(os, "fork", fork)
    job.loop(job.loader())


@fault
def no_thread(job):
    """For the end of the workers that the user asked for."""
    real = threading.Thread.start
    job.patched(threading.Thread, "start", lambda self: no_more_threads() if "loadtune" in self.name else real(self))
    job.loop(job.loader())


def no_more_threads():
    raise RuntimeError("can't start new thread")


@fault
def many_threads(job):
    """A fork in a process whose other threads hold locks."""
    done = threading.Event()

    def busy():
        while not done.is_set():
            random.Random(1).random(), torch.ones(8).sum(), print(end="")

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    job.loop(job.loader())
    done.set()


@fault
def stderr_is_closed(job):
    job.patched(tuner.Tuner, "_delivering", broken)
    sys.stderr.close()
    job.loop(job.loader())


# The tuner


@each("tuner_fails_in", {
    name: (owner, name)
    for owner, names in {
        tuner.Tuner: ("open", "begin", "before_step", "after_step", "end", "_look", "_delivering"),
        tuner: ("SwitchingIterator", "Steps", "Trust", "WatchedSampler"),
        iterator: ("_tuner_of", "place_of", "reason_against"),
        words: ("say",), readings: ("batch_size", "read_free"),
    }.items()
    for name in names
})  # fmt: skip
def tuner_fails_in(job, place):
    job.patched(*place, broken)
    job.loop(job.loader(), epochs=2)


@each("tuner_fails_without_workers_in", {
    name: (owner, name)
    for owner, name in ((tuner.Trust, "changed"), (tuner, "same_batch"), (tuner.Tuner, "after_step"))
})  # fmt: skip
def tuner_fails_without_workers_in(job, place):
    job.patched(*place, broken)
    job.loop(job.loader(num_workers=0))


# The loop and its data


@each("loop", {
    "exits": lambda: sys.exit(3), "exits_at_once": lambda: os._exit(4),
    "is_interrupted": lambda: broken_by(signal.SIGINT),
    "is_terminated": lambda: broken_by(signal.SIGTERM), "is_killed": kill_me, "raises": broken,
}, tuned_only=False)  # fmt: skip
def loop(job, happens):
    job.loop(job.loader(), lambda number: happens() if number == 9 else None)


def broken_by(number):
    os.kill(os.getpid(), number)
    time.sleep(0.2)


def loop_that_is_timed_out(job, dataset, act=lambda number: None):
    """The handler of a signal raises once, in whatever code runs just then; the loop catches that and goes on."""
    signal.signal(signal.SIGUSR1, lambda *_: time_out())
    loader, batches, number, caught = DataLoader(dataset, SIZE, num_workers=1), None, 0, []
    while number < BATCHES:
        try:
            batches = batches or iter(loader)
            job.see(next(batches))
            number += 1
            act(number)
        except TimeoutError as error:
            caught.append(str(error))
    job.see(caught)


def time_out():
    raise TimeoutError("of the user's handler")


@fault
def handler_raises_while_the_loop_waits(job):
    sent = torch.multiprocessing.Event()

    def happens(_):
        if not sent.is_set():
            sent.set()
            time.sleep(0.3)
            os.kill(os.getppid(), signal.SIGUSR1)
            time.sleep(0.3)

    loop_that_is_timed_out(job, Rows(at=60, happens=happens))


@each("handler_raises_in", {
    "the_tuner": (tuner.Tuner, "before_step", 10), "the_start_of_a_worker": (pool.Pool, "_started", 2),
})  # fmt: skip
def handler_raises_in(job, case):
    """Without a tuner in the loop."""
    owner, name, which = case
    real, calls = getattr(owner, name), []

    def called(*args):
        calls.append(1)
        if len(calls) == which:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real(*args)

    job.patched(owner, name, called)
    loop_that_is_timed_out(
        job, Rows(), lambda number: broken_by(signal.SIGUSR1) if number == 10 and not job.tuned else None
    )


@each("sample_raises", {"of_one_worker": 1, "of_two_workers": 2, "without_workers": 0}, tuned_only=False)
def sample_raises(job, num_workers):
    """And the loop goes on with what follows."""
    batches = iter(job.loader(at=30, num_workers=num_workers))
    while True:
        try:
            job.see(next(batches))
        except ValueError as error:
            job.see((str(error).splitlines()[-1], "PoolFailedError" in str(error)))
        except StopIteration:
            break


@fault
def sampler_raises(job):
    """It is asked further ahead of the loop, as with that many workers of the user's: its error comes earlier."""

    class Sampler:
        def __iter__(self):
            yield from ([index, index + 1] for index in range(0, 40, 2))
            raise KeyError("sampler")

    for number, batch in enumerate(DataLoader(Rows(), batch_sampler=Sampler(), num_workers=1)):
        if number < 2 * AT:
            job.see(batch)


@fault
def collate_raises(job):
    job.loop(
        job.loader(collate_fn=lambda samples: torch.stack(samples) if samples[0][0] != 40 else broken(), shuffle=False)
    )


@fault
def users_worker_is_killed(job):
    """The batch that it was handing over may still come, and torch raises this or that."""
    batches = iter(job.loader(prefetch_factor=1))
    for _ in range(3):
        job.see(next(batches))
    for worker in torch.multiprocessing.active_children():
        worker.kill()
    try:
        list(batches)
    except (RuntimeError, OSError):
        job.see("died")


@fault
def generator_is_closed(job):
    loader = job.loader()
    for stop in (3, 6):
        batches = (batch for batch in loader)
        for _ in range(stop):
            job.see(next(batches))
        batches.close()
    job.loop(loader)


@fault
def loader_is_deleted(job):
    loader = job.loader()
    batches = iter(loader)
    job.see(next(batches))
    del loader
    for batch in batches:
        job.see(batch)


@fault
def persistent_epochs_break(job):
    loader = job.loader(persistent_workers=True)
    for stop in (5, 7, BATCHES):
        for number, batch in enumerate(loader):
            job.see(batch)
            if number == stop:
                break
    job.loop(loader)


@fault
def another_thread_iterates(job):
    thread = threading.Thread(target=job.loop, args=(job.loader(),))
    thread.start()
    thread.join()


@fault
def process_forks(job):
    def fork(number):
        if number in (3, 8) and (pid := os.fork()):
            os.waitpid(pid, 0)
        elif number in (3, 8):
            os._exit(0)

    job.loop(job.loader(), fork)


@fault
def child_iterates(job):
    """With a loader of its own, in the middle of its parent's epoch."""

    def fork(number):
        if number == 10:
            iterate = lambda: [job.see(batch) for batch in job.loader()]  # noqa: E731
            child = torch.multiprocessing.get_context("fork").Process(target=iterate)
            child.start()
            child.join()
            job.see(child.exitcode)

    job.loop(job.loader(), fork)


@fault
def two_threads_iterate(job):
    seen = {number: [] for number in range(2)}

    def loop(number):
        for batch in job.loader(generator=torch.Generator().manual_seed(number)):
            seen[number].append(batch.tolist())

    threads = [threading.Thread(target=loop, args=(number,)) for number in seen]
    for each_thread in threads:
        each_thread.start()
    for each_thread in threads:
        each_thread.join()
    job.see(seen)


@fault
def stream_is_shared_out(job):
    job.loop(DataLoader(Stream(), SIZE, num_workers=2), epochs=2)


@fault
def pinning_fails(job):
    """Its thread ends in the middle: of other workers only."""
    real = torchs._utils.pin_memory._pin_memory_loop

    class Cpu:
        type, index = "cpu", 0

    torch.accelerator.is_available = lambda: True
    torch.accelerator.current_accelerator = Cpu
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda *_: None
    torchs._utils.pin_memory.pin_memory = lambda data, device=None: data
    made = []

    def pin(*args):
        made.append(1)
        return real(*args) if len(made) == 1 or not job.tuned else None

    torchs._utils.pin_memory._pin_memory_loop = pin
    job.loop(job.loader(pin_memory=True))


def run(name, log_path, tuned):
    """In a process of its own: what the script of a user would do."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    random.seed(3)
    job = Job(log_path.open("w"), tuned)
    sys.stderr = log_path.with_suffix(".err").open("w")
    if tuned:
        hook.install()
        iterator.Tuner = Switched
        Switched.switches = {(0, AT): OTHERS}
        iterator.place_of = lambda frame: "loop"
        pool.HANG_S = pool.READY_LIMIT_S = 0.7
    FAULTS[name](job)


def outcome(name, folder, tuned):
    """What the loop of that process saw, and the status of its end. In the child this does not return."""
    log = folder / f"{name}-{tuned}.log"
    pid = os.fork()
    if pid == 0:
        raise Child(name, log, tuned)
    deadline, status = time.monotonic() + LIMIT_S, None
    while time.monotonic() < deadline and status is None:
        ended, raw = os.waitpid(pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(raw) if ended else None
        time.sleep(0.01)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"status": "hung" if status is None else status, "seen": log.read_text().splitlines()}


class Child(Exception):
    """This process is to run a fault; it ends as a script."""


def main(names):
    folder = Path(tempfile.mkdtemp())  # no context manager, which a child would leave, too
    alone = {}
    gc.freeze()  # else each child's first collection copies all that was imported
    for each_name in names:
        alike = ALIKE.get(each_name, each_name)
        without = alone[alike] = alone.get(alike) or outcome(each_name, folder, False)
        with_tuner = outcome(each_name, folder, True)
        said = (folder / f"{each_name}-True.err").read_text()
        found = {"fault": each_name, "same": with_tuner == without, "without": without, "with": with_tuner}
        print(json.dumps(found | {"said": said[-9000:]}), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    arguments = None
    try:
        main(sys.argv[1:] or [*FAULTS])
    except Child as child:
        arguments = child.args
    if arguments is not None:
        run(*arguments)
