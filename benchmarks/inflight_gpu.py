"""A training script on a GPU as somebody would write it, and what `loadtune exec` makes of it.

    python benchmarks/inflight_gpu.py train --job fake|jpeg --workers N --seconds S [--batch-size 256]
    python benchmarks/inflight_gpu.py compare --job fake --begin 0 2 --fixed 12 14 16 [--tuned-s 150] [--best-s 60]
        [--ranks 2 [--slow RANK] [--fsdp]]

``train`` prints samples/s of every 5 s, and nothing of loadtune is in it. ``compare`` runs it with fixed numbers of
workers, with the fastest of them for longer, unchanged and tuned, and prints for each tuned run the seconds until 5 s
first reached 95% of the best fixed rate, and its last 60 s (at most half of it) beside that rate.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERY_S = 5.0


class Slowed:
    """The samples of a data set, each some milliseconds later."""

    def __init__(self, dataset, seconds):
        self.dataset, self.seconds = dataset, seconds

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.dataset[index]


def data_of(given, rank, side):
    from torchvision import transforms
    from torchvision.datasets import FakeData
    from workloads import jpegs

    dataset = jpegs() if given.job == "jpeg" else FakeData(200_000, (3, side, side), 1000, transforms.ToTensor())
    return Slowed(dataset, 0.008) if rank == given.slow else dataset


def model_of(given, device):
    import torch
    from torchvision.models import resnet50

    layout = torch.contiguous_format if given.fsdp else torch.channels_last  # FSDP takes contiguous weights only
    model = resnet50().to(device, memory_format=layout).train()
    if given.ranks < 2:
        return model
    if given.fsdp:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh(device.type, (given.ranks,)))
        return model
    return torch.nn.parallel.DistributedDataParallel(model, [device] if device.type == "cuda" else None)


def train(given):
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    on_gpu = torch.cuda.is_available()
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device(f"cuda:{rank}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if given.ranks > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    dataset = data_of(given, rank, 224 if on_gpu else 32)
    loader = DataLoader(
        dataset,
        given.batch_size,
        sampler=DistributedSampler(dataset) if given.ranks > 1 else None,
        shuffle=given.ranks < 2,
        drop_last=True,
        num_workers=given.workers,
        pin_memory=on_gpu,
        persistent_workers=given.workers > 0,
    )
    model = model_of(given, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    begun, edge, count, rates, step = time.monotonic(), None, 0, [], 0
    while True:
        for images, labels in loader:
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now, step = time.monotonic(), step + 1
            if edge is None:  # the first step chooses kernels
                begun = edge = now
                continue
            count += len(labels) * given.ranks
            if now - edge >= EVERY_S:
                rates.append([round(now - begun, 2), round(count / (now - edge), 1)])
                edge, count = now, 0
            if ended(given, now - begun, step, device):
                if rank == 0:
                    os.write(1, f"RATES {json.dumps(rates)}\n".encode())
                if given.ranks > 1:
                    dist.destroy_process_group()
                return


def ended(given, seconds, step, device):
    """Ranks end at the same step: the first one says when."""
    import torch

    if given.ranks < 2:
        return seconds >= given.seconds
    if step % 10:
        return False
    flag = torch.tensor([seconds >= given.seconds], dtype=torch.int32, device=device)
    torch.distributed.broadcast(flag, 0)
    return bool(flag.item())


def run(prefix, given, workers, seconds, log):
    launcher = [sys.executable]
    if given.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(given.ranks)]
    command = [*launcher, __file__, "train", "--job", given.job, "--workers", str(workers), "--seconds", str(seconds)]
    command += ["--batch-size", str(given.batch_size), "--ranks", str(given.ranks), "--slow", str(given.slow)]
    command += ["--fsdp"] * given.fsdp
    done = subprocess.run([*prefix, *command], capture_output=True, text=True)
    with log.open("a") as file:
        file.write(f"== {prefix} {workers}\n{done.stdout}\n{done.stderr}\n")
    line = next((line for line in done.stdout.splitlines() if line.startswith("RATES")), None)
    if line is None:
        raise SystemExit(done.stderr[-3000:])
    said = [line for line in done.stderr.splitlines() if line.startswith("loadtune:")]
    return json.loads(line[5:]), said


def steady(rates):
    """Of the last 60%: queues are full, and no epoch begins."""
    return statistics.fmean(rate for _, rate in rates[len(rates) * 2 // 5 :])


def compare(given):
    log = given.out / f"exec-{given.job}.txt"
    fixed = {}
    for workers in given.fixed:
        fixed[workers] = steady(run([], given, workers, given.fixed_s, log)[0])
        print(f"fixed {workers}: {fixed[workers]:,.0f} samples/s", flush=True)
    fastest = max(fixed, key=fixed.get)
    best = fixed[fastest]
    if given.best_s:
        best = steady(run([], given, fastest, given.best_s, log)[0])
        print(f"fixed {fastest}, {given.best_s:.0f} s: {best:,.0f} samples/s", flush=True)
    for workers in given.begin:
        if given.plain_s:
            plain = steady(run([], given, workers, given.plain_s, log)[0])
            print(f"unchanged {workers}: {plain:,.0f} samples/s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            prefix = [sys.executable, "-m", "loadtune", "exec", "--out", folder, "--"]
            rates, said = run(prefix, given, workers, given.tuned_s, log)
            kept = (Path(folder) / "inflight.json").read_text()
            (given.out / f"exec-{given.job}-{workers}.json").write_text(kept)
        reached = next((at for at, rate in rates if rate >= 0.95 * best), None)
        last_s = min(60.0, rates[-1][0] / 2)
        last = statistics.fmean(rate for at, rate in rates if at > rates[-1][0] - last_s)
        print(
            f"from {workers}: tuned {last:,.0f} in its last {last_s:.0f} s, {last / best:.0%} of the "
            f"best fixed; 95% of it after {reached} s; {rates}"
        )
        print(*said, sep="\n", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=("train", "compare"))
    parser.add_argument("--job", default="fake", choices=("fake", "jpeg"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=1, help="processes under torchrun, a GPU each")
    parser.add_argument("--slow", type=int, default=-1, metavar="RANK", help="each of its samples takes 8 ms more")
    parser.add_argument("--fsdp", action="store_true", help="shard the model instead of copying it")
    parser.add_argument("--begin", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--fixed", type=int, nargs="*", default=[12, 14, 16])
    parser.add_argument("--fixed-s", type=float, default=20.0)
    parser.add_argument("--best-s", type=float, default=60.0)
    parser.add_argument("--plain-s", type=float, default=45.0)
    parser.add_argument("--tuned-s", type=float, default=150.0)
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    if given.job == "jpeg":
        from workloads import spec_of

        spec_of("jpeg-resnet50", small=given.fixed == [] or not Path("/dev/nvidia0").exists(), folder=None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    if given.do == "train":
        train(given)
    else:
        compare(given)


if __name__ == "__main__":
    main()
