"""What `loadtune exec` costs where nothing can be gained, how often it says that something was, and what it says of
true gains.

    python benchmarks/inflight_aa.py [KIND ...] [--runs 40] [--cores 4] [--times 1] [--json FILE]

Each job has its best number of workers, but those of ``gain``: there a second worker makes the loop so many times as
fast, because samples and steps sleep. Its truth is measured: nine tenths of the loop with one worker and with eight.
``--times``: length of all jobs. They run in pairs, plain and under `loadtune exec`, on the same cores:
``--runs`` pairs over all kinds on idle cores, and as many with a busy process on each core. Where there are more than
``--cores``, several pairs run at once.

*Slower* is of the loop alone, from after the imports until its workers have ended: the mean of all pairs and the half
width of its 95% interval. *Beside the job* leaves out the CPU seconds of the job's own samples and steps: they are the
same work in both, and vary by a quarter with the clock of a host. It is what is more beside them, as a share of all CPU
seconds of the plain run. *Start* is the rest: CPU seconds that the launcher, the hook and their end take.
"""

import argparse
import hashlib
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev

# batch size, hashes a sample, seconds it sleeps, products a step, seconds it sleeps, workers (None: cores), batches
KINDS = {
    "the step computes": (16, 50, 0.0, 24, 0.0, 2, 600),
    "loading computes": (16, 1200, 0.0, 0, 0.0, None, 900),
    "rows in memory": (16, 1, 0.0, 24, 0.0, 0, 600),
    "samples sleep": (8, 1, 0.004, 0, 0.008, 8, 500),
}
GAINS = {f"gain {gain}": (8, 1, gain * 0.0025, 0, 0.02, 1, 300) for gain in (1.1, 1.3, 2.0, 5.0)}
COLUMNS = ("job", "cores", "pairs", "gain printed", "workers changed", "CPU slower", "beside the job", "wall slower")
COLUMNS += ("start, CPU s",)
TOLD = ("true gain", "told", "told, in the mean", "interval holds it", "of told")


class Own:
    """CPU seconds of samples by worker, and of steps: of no object that the dataset refers to, since that would be a
    dataset that changes as it is read."""

    seconds = None


def train(kind, cores, times, workers):
    import torch
    from torch.utils.data import DataLoader, Dataset, get_worker_info

    torch.set_num_threads(1)
    size, hashing, sleeping_s, products, step_s, num_workers, num = (KINDS | GAINS)[kind]
    num_workers, num = num_workers if workers is None else workers, num * times
    rows, weights = torch.randn(size * num, 256), torch.randn(256, 256)
    Own.seconds = torch.zeros(257, dtype=torch.float64).share_memory_()  # the last: of this process

    class Samples(Dataset):
        def __len__(self):
            return len(rows)

        def __getitem__(self, index):
            begun_s, worker = time.thread_time(), get_worker_info()
            hashlib.pbkdf2_hmac("sha256", b"sample", b"salt", hashing)
            time.sleep(sleeping_s)
            Own.seconds[-1 if worker is None else worker.id] += time.thread_time() - begun_s
            return rows[index]

    def cpu_s():
        used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(each.ru_utime + each.ru_stime for each in used)

    begun, begun_s = cpu_s(), time.perf_counter()
    for number, batch in enumerate(
        DataLoader(Samples(), size, num_workers=cores if num_workers is None else num_workers)
    ):
        if number == num // 10:
            steady_s = time.perf_counter()
        begun_step_s, wide = time.thread_time(), batch.repeat(16, 1)
        for _ in range(products):
            wide = torch.tanh(wide @ weights)
        time.sleep(step_s)
        Own.seconds[-1] += time.thread_time() - begun_step_s
    steady_s = time.perf_counter() - steady_s
    print("loop", cpu_s() - begun, time.perf_counter() - begun_s, steady_s, Own.seconds.sum().item())


def run(kind, cores, tuned, times, workers=None):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, kind, "--train", "--cores", str(len(cores)), "--times", str(times)]
        command += [] if workers is None else ["--workers", str(workers)]
        if tuned:
            command = [sys.executable, "-m", "loadtune", "exec", "--out", folder, "--", *command]
        told, pinned = Path(folder) / "told", ["taskset", "-c", ",".join(map(str, cores)), *command]
        with told.open("w") as file, subprocess.Popen(pinned, stdout=file, stderr=file) as process:
            _, process.returncode, used = os.wait4(process.pid, 0)
        said = told.read_text()
        assert process.returncode == 0, said
        loop_cpu_s, loop_s, steady_s, own_s = map(float, re.search(r"loop (\S+) (\S+) (\S+) (\S+)", said).groups())
        found = {
            "cpu_s": loop_cpu_s,
            "beside_s": loop_cpu_s - own_s,
            "wall_s": loop_s,
            "steady_s": steady_s,
            "start_s": used.ru_utime + used.ru_stime - loop_cpu_s,
        }
        if tuned:
            (loader,) = json.loads((Path(folder) / "inflight.json").read_text())["loaders"]
            found["gain"] = "to keep it" in said
            found["interval"] = [loader[name] for name in ("gain", "gain_low", "gain_high")]
            found["changed"] = loader["num_workers"] != loader["own_workers"]
            found["said"] = re.findall("loadtune: .*", said)
        return found


def pairs(kinds, num, slots, times):
    free = list(slots)

    def pair(number):
        kind, slot = kinds[number % len(kinds)], free.pop()
        turn = 1 if number // len(kinds) % 2 else -1  # the one first, then the other
        figures = [run(kind, slot, tuned, times) for tuned in (True, False)[::turn]][::turn]
        if kind in GAINS:
            figures[0]["truth"] = figures[1]["steady_s"] / run(kind, slot, False, times, 8)["steady_s"]
        free.append(slot)
        return kind, figures[::-1]

    with ThreadPoolExecutor(len(slots)) as pool:
        return list(pool.map(pair, range(num)))


def row(kind, cores, figures):
    cells = [kind, cores, len(figures), *(sum(tuned[name] for _, tuned in figures) for name in ("gain", "changed"))]
    for name, of in (("cpu_s", "cpu_s"), ("beside_s", "cpu_s"), ("wall_s", "wall_s")):
        more = [(tuned[name] - plain[name]) / plain[of] for plain, tuned in figures]
        half = 2 * stdev(more) / math.sqrt(len(more)) if len(more) > 1 else math.nan
        cells.append(f"{fmean(more):+.1%} ± {half:.1%}")
    return [*map(str, cells), f"{fmean(tuned['start_s'] - plain['start_s'] for plain, tuned in figures):.2f}"]


def told_row(figures):
    """Of true gains: as measured; how often one was told, its mean; how many intervals hold the truth."""
    truth = fmean(tuned["truth"] for _, tuned in figures)
    told = [tuned["interval"] for _, tuned in figures if tuned["gain"] and tuned["interval"][1] is not None]
    held = sum(low <= truth <= high for _, low, high in told)
    mean = f"{fmean(each[0] for each in told):.2f}" if told else "-"
    return [f"{truth:.2f}", f"{len(told)} of {len(figures)}", mean, str(held), str(len(told))]


def show(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS | GAINS))
    parser.add_argument("--runs", type=int, default=40, help="pairs on idle cores, and as many beside load")
    parser.add_argument("--cores", type=int, default=4, help="of one run")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="for the figures of each run")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.kinds[0], given.cores, given.times, given.workers)
        return
    usable, kinds, kept = sorted(os.sched_getaffinity(0)), given.kinds or list(KINDS), {}
    slots = [usable[at : at + given.cores] for at in range(0, max(1, len(usable) - given.cores + 1), given.cores)]
    show([*COLUMNS, *TOLD])
    show(["---"] * len(COLUMNS + TOLD))
    for cores in ("idle", "busy"):
        busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
        beside = [["taskset", "-c", str(core), sys.executable, "-c", busy] for core in usable if cores == "busy"]
        load = [subprocess.Popen(each) for each in beside]
        kept[cores] = pairs(kinds, given.runs, slots, given.times)
        for each in load:
            each.kill()
            each.wait()
        for kind in [*kinds, "all"]:
            figures = [each for name, each in kept[cores] if kind in (name, "all")]
            show(row(kind, cores, figures) + (told_row(figures) if kind in GAINS else [""] * len(TOLD)))
        (given.json or Path(os.devnull)).write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
