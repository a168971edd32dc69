"""A training as somebody would write it, in one mode after another: ``inflight_modes.py FOLDER NUM_WORKERS MODE ...``.

Each of several modes runs in a process that is forked once torch is imported, and ends as a script does. Where
``$OTHER_WORKERS`` is set, loaders that are tuned switch to so many at batch 4.
"""

import gc
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])


class Samples(Dataset):
    """Each process that reads one is noted."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.002)
        (FOLDER / f"{os.getpid()}.pid").touch()
        return index


def batches(name="", act=lambda number: None):
    """The loop: writes what it sees, and says how it ended."""
    global kept
    generator = torch.Generator().manual_seed(7)
    kept = own = iter(DataLoader(Samples(), 4, shuffle=True, num_workers=int(sys.argv[2]), generator=generator))
    with (FOLDER / f"{MODE}{name}.log").open("a") as log:
        for number, batch in enumerate(own):  # another thread sets the global one
            print(batch.tolist(), file=log, flush=True)
            if act(number):
                break
        print(torch.rand(1, generator=generator).item(), file=log)
    print("trained", flush=True)


def at(which, act):
    """Acts at one batch, when other workers deliver."""
    return lambda number: act() if number == which else None


def traced():
    def trace(*_):
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    batches()
    sys.settrace(None)


def profiled():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        batches()


def forking():
    def fork():
        if (pid := os.fork()) == 0:
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        child = multiprocessing.get_context("fork").Process(target=batches, args=("-child",))
        child.start()
        child.join()
        assert child.exitcode == 0

    batches(act=at(12, fork))
    if (pid := os.fork()) == 0:
        sys.exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6


def threads():
    both = [threading.Thread(target=batches, args=(f"-{number}",)) for number in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()


def raises():
    raise LookupError("the script's own")


def begun_by(start_method):
    """Whose workers import torch; that of forkserver once for all."""
    multiprocessing.set_start_method(start_method)
    multiprocessing.set_forkserver_preload(["torch"])
    batches()


MODES = {
    "plain": batches, "spawn": lambda: begun_by("spawn"), "forkserver": lambda: begun_by("forkserver"),
    "traced": traced, "profiled": profiled, "forking": forking, "threads": threads,
    "exits": lambda: batches(act=at(12, lambda: sys.exit(3))),
    "raises": lambda: batches(act=at(12, raises)),
    "leaves": lambda: batches(act=at(12, lambda: True)),
}  # fmt: skip


def begin(modes):
    """The mode of this process. None: it was the parent of all."""
    gc.freeze()  # else each child's first collection copies all that was imported
    for mode in modes:
        if (pid := os.fork()) == 0:
            for number, stream in ((1, "out"), (2, "err")):
                os.dup2(os.open(FOLDER / f"{mode}.{stream}", os.O_WRONLY | os.O_CREAT), number)
            return mode
        (FOLDER / f"{mode}.code").write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    return None


if __name__ == "__main__":
    if "OTHER_WORKERS" in os.environ:
        from switched import Switched

        from loadtune.inflight import iterator

        iterator.Tuner = Switched
        Switched.switches = {(0, 4): int(os.environ["OTHER_WORKERS"])}
    MODE = sys.argv[3] if len(sys.argv) == 4 else begin(sys.argv[3:])
    if MODE is not None:
        MODES[MODE]()
