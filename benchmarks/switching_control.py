"""Fresh DataLoaders beside ones that switch in flight, in one warm process: which repeats better for each second spent?

    python benchmarks/switching_control.py [--quick] [--rounds 6] [--out FILE.json]

ResNet-50 on FakeData, channels_last, pinned, prefetch_factor 2. Every round measures each setting twice, once with new
worker processes and once by a switch, in random order: settle, then at least 15 rounds of the workers. Then fp16 with a
plain and with a fused optimizer in turn, and 8 workers once more with every worker on a core of its own. Each segment
keeps the batches of each worker, its CPU seconds and the cores it ran on, so that a spread can be traced to its cause.
"""

import argparse
import json
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torchvision
from torch.utils.data import DataLoader, get_worker_info

ROUNDS_OF_WORKERS = 15


class Timed(torch.utils.data.Dataset):
    """Counts each worker's batches and seconds in shared memory; pins worker i to core 2i where asked."""

    def __init__(self, dataset, table, own_core):
        self.dataset, self.table, self.own_core = dataset, table, own_core

    def __len__(self):
        return len(self.dataset)

    def __getitems__(self, indices):
        worker = get_worker_info().id
        row = self.table[worker]
        if self.own_core and row[3] == 0:
            os.sched_setaffinity(0, {2 * worker % os.cpu_count()})
        row[3] = os.getpid()
        begun, cpu = time.monotonic(), time.process_time()
        batch = [self.dataset[index] for index in indices]
        row[0] += 1
        row[1] += time.monotonic() - begun
        row[2] += time.process_time() - cpu
        return batch


class Gate:
    """Index batches from one stream, until it is closed: then the pool that it feeds drains."""

    def __init__(self, stream, lock):
        self.stream, self.lock, self.open = stream, lock, True

    def __iter__(self):
        while True:
            with self.lock:
                if not self.open:
                    return
                batch = next(self.stream)
            yield batch


def endless(length: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        for batch in torch.randperm(length, generator=generator).split(batch_size):
            if len(batch) == batch_size:
                yield batch.tolist()


class Pool:
    """One set of worker processes over the shared stream."""

    def __init__(self, job, workers, own_core=False):
        self.workers = workers
        self.table = torch.zeros(max(1, workers), 4, dtype=torch.float64).share_memory_()
        self.gate = Gate(job.stream, job.lock)
        loader = DataLoader(
            Timed(job.dataset, self.table, own_core),
            batch_sampler=self.gate,
            num_workers=workers,
            pin_memory=job.device.type == "cuda",
            prefetch_factor=2,
        )
        self.iterator = iter(loader)

    def made(self):
        return self.table.clone()

    def cores(self):
        """The core on which each worker ran last."""
        return [
            int(Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[36]) for pid in self.table[:, 3]
        ]

    def close(self):
        self.iterator._shutdown_workers()


class Job:
    def __init__(self, quick):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        side = 32 if quick else 224
        transform = torchvision.transforms.ToTensor()
        self.dataset = torchvision.datasets.FakeData(1_281_167, (3, side, side), 1000, transform)
        self.batch_size = 32 if quick else 256
        self.stream, self.lock = endless(len(self.dataset), self.batch_size, 0), threading.Lock()
        name = "resnet18" if quick else "resnet50"
        self.model = getattr(torchvision.models, name)().to(self.device, memory_format=torch.channels_last)
        self.live: Pool | None = None
        self.use("bf16")

    def use(self, precision):
        """bf16, fp16, or fp16-fused: the scaler starts low, so that no step is skipped."""
        fp16 = precision.startswith("fp16")
        self.dtype = torch.float16 if fp16 else torch.bfloat16
        fused = True if precision.endswith("fused") else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9, fused=fused)
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=2.0**8, enabled=fp16)

    def step(self, batch):
        inputs, targets = batch
        inputs = inputs.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        targets = targets.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, dtype=self.dtype):
            loss = torch.nn.functional.cross_entropy(self.model(inputs), targets)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def train_on(self, pool, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.step(next(pool.iterator))

    def switch(self, workers):
        """The new pool starts, the old one trains on until it has drained."""
        old, new = self.live, Pool(self, workers)
        if old is not None:
            old.gate.open = False
            for batch in old.iterator:
                self.step(batch)
            old.close()
        self.live = new
        return new

    def segment(self, mode, workers, settle_s, own_core=False):
        begun = time.monotonic()
        pool = self.switch(workers) if mode == "switched" else Pool(self, workers, own_core)
        self.step(next(pool.iterator))
        first_s = time.monotonic() - begun
        self.train_on(pool, settle_s)
        parts = []
        made0, steps, waited, started = pool.made(), 0, 0.0, self._edge()
        stolen = _stolen_s()
        for _ in range(ROUNDS_OF_WORKERS):
            at, took = time.monotonic(), pool.made()
            for _ in range(workers):
                asked = time.monotonic()
                batch = next(pool.iterator)
                waited += time.monotonic() - asked
                self.step(batch)
                steps += 1
            parts.append((time.monotonic() - at, float((pool.made() - took)[:, 0].sum())))
        self.synchronize()
        seconds = time.monotonic() - started
        made = pool.made() - made0
        found = {
            "mode": mode,
            "workers": workers,
            "own_core": own_core,
            "first_s": first_s,
            "seconds": seconds,
            "trained_per_s": steps * self.batch_size / seconds,
            "made_per_s": float(made[:, 0].sum()) * self.batch_size / seconds,
            "waited": waited / seconds,
            "worker_batch_s": (made[:, 1] / made[:, 0].clamp(min=1)).tolist(),
            "worker_cpu_s": (made[:, 2] / made[:, 0].clamp(min=1)).tolist(),
            "worker_batches": made[:, 0].tolist(),
            "cores": pool.cores(),
            "stolen_s": _stolen_s() - stolen,
            "rounds": parts,
        }
        if mode == "fresh":
            pool.close()
        found["cost_s"] = time.monotonic() - begun
        return found

    def _edge(self):
        self.synchronize()
        return time.monotonic()


def _stolen_s() -> float:
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / os.sysconf("SC_CLK_TCK")


def spread(rates):
    return statistics.stdev(rates) / statistics.fmean(rates) if len(rates) > 1 else float("nan")


def row(name, found):
    trained, made = ([each[key] for each in found] for key in ("trained_per_s", "made_per_s"))
    slowest = [statistics.fmean(each["worker_batch_s"]) / max(each["worker_batch_s"]) for each in found]
    cost = statistics.fmean(each["cost_s"] for each in found)
    return (
        f"{name:28s} {statistics.fmean(trained):8.0f} {spread(trained):7.1%} {spread(made):7.1%} "
        f"{statistics.fmean(each['waited'] for each in found):7.0%} {cost:7.1f} "
        f"{spread(trained) * cost**0.5:7.3f} {statistics.fmean(slowest):7.2f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a rehearsal on two CPU cores")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--settle", type=float, default=3.0, help="seconds")
    parser.add_argument("--within", type=float, default=540.0, help="seconds; begins no round that would end later")
    parser.add_argument("--bf16-only", action="store_true", help="neither fp16 nor workers on cores of their own")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    begun, random_order = time.monotonic(), random.Random(0)
    job = Job(arguments.quick)
    settings = (1, 2) if arguments.quick else (8, 12, 16)
    settle = 0.5 if arguments.quick else arguments.settle
    job.segment("switched", settings[-1], settle)  # warm
    found, round_s = [], 0.0

    def runs(plan):
        """[(precision, mode, workers, own_core)], each as a segment."""
        for precision, mode, workers, own_core in plan:
            job.use(precision)
            found.append(job.segment(mode, workers, settle, own_core) | {"precision": precision})
            if arguments.out:
                arguments.out.write_text(json.dumps(found))

    def in_time():
        return time.monotonic() - begun + round_s < arguments.within

    for number in range(arguments.rounds):
        if not in_time():
            break
        started = time.monotonic()
        blocks = [("switched", settings), ("fresh", settings)]
        random_order.shuffle(blocks)
        plan = []
        for mode, workers in blocks:
            plan += [("bf16", mode, each, False) for each in random_order.sample(workers, len(workers))]
        extra = [(precision, "switched", settings[-1], False) for precision in ("fp16", "fp16-fused")]
        extra = [*random_order.sample(extra, len(extra)), ("bf16", "fresh", settings[0], True)]
        extra = [] if job.device.type == "cpu" or arguments.bf16_only else extra
        runs([*plan, *extra])
        round_s = time.monotonic() - started
        print(f"round {number + 1}: {round_s:.0f} s", flush=True)
    print(
        f"\n{'':28s} {'trained':>8s} {'spread':>7s} {'made':>7s} {'blocked':>7s} {'cost s':>7s} {'x√s':>7s}"
        f" {'mean/max worker':>7s}"
    )
    keys = dict.fromkeys((each["precision"], each["mode"], each["workers"], each["own_core"]) for each in found)
    for key in sorted(keys):
        alike = [each for each in found if (each["precision"], each["mode"], each["workers"], each["own_core"]) == key]
        print(row(f"{key[0]} {key[1]} {key[2]}{' own cores' if key[3] else ''} n={len(alike)}", alike))
    siblings = sorted(
        {
            path.read_text().strip()
            for path in Path("/sys/devices/system/cpu").glob("cpu*/topology/thread_siblings_list")
        }
    )
    print("thread siblings:", siblings[:4], "…", os.cpu_count(), "CPUs")


if __name__ == "__main__":
    main()
