"""A training script on a GPU as somebody would write it, and what `loadtune exec` makes of it.

    python benchmarks/inflight_gpu.py train --job fake|jpeg --workers N --seconds S [--batch-size 256]
    python benchmarks/inflight_gpu.py compare --job fake --begin 0 2 --fixed 12 14 16 [--tuned-s 120] [--fixed-s 40]

``train`` prints samples/s of every 5 s, and nothing of loadtune is in it. ``compare`` runs it unchanged, tuned and with
fixed numbers of workers, and prints for each tuned run the seconds until 5 s first reached 95% of the best fixed rate,
and its last 40% beside that rate.
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


def train(job, workers, seconds, batch_size):
    import torch
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import FakeData
    from torchvision.models import resnet50
    from workloads import jpegs

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    side = 224 if on_gpu else 32
    dataset = jpegs() if job == "jpeg" else FakeData(200_000, (3, side, side), 1000, transforms.ToTensor())
    loader = DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=on_gpu,
        persistent_workers=workers > 0,
    )
    model = resnet50().to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    begun, edge, count, rates = time.monotonic(), None, 0, []
    while True:
        for images, labels in loader:
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.monotonic()
            if edge is None:  # the first step chooses kernels
                begun = edge = now
                continue
            count += len(labels)
            if now - edge >= EVERY_S:
                rates.append([round(now - begun, 2), round(count / (now - edge), 1)])
                edge, count = now, 0
            if now - begun >= seconds:
                print("RATES", json.dumps(rates), flush=True)
                return


def run(prefix, job, workers, seconds, batch_size, log):
    command = [sys.executable, __file__, "train", "--job", job, "--workers", str(workers), "--seconds", str(seconds)]
    command += ["--batch-size", str(batch_size)]
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
        fixed[workers] = steady(run([], given.job, workers, given.fixed_s, given.batch_size, log)[0])
        print(f"fixed {workers}: {fixed[workers]:,.0f} samples/s", flush=True)
    best = max(fixed.values())
    for workers in given.begin:
        plain = steady(run([], given.job, workers, given.plain_s, given.batch_size, log)[0])
        with tempfile.TemporaryDirectory() as folder:
            prefix = [sys.executable, "-m", "loadtune", "exec", "--out", folder, "--"]
            rates, said = run(prefix, given.job, workers, given.tuned_s, given.batch_size, log)
            kept = (Path(folder) / "inflight.json").read_text()
            (given.out / f"exec-{given.job}-{workers}.json").write_text(kept)
        reached = next((at for at, rate in rates if rate >= 0.95 * best), None)
        last = statistics.fmean(rate for _, rate in rates[len(rates) * 3 // 5 :])
        print(
            f"from {workers}: unchanged {plain:,.0f}, tuned {last:,.0f} in its last part, {last / best:.0%} of the "
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
    parser.add_argument("--begin", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--fixed", type=int, nargs="*", default=[12, 14, 16])
    parser.add_argument("--fixed-s", type=float, default=40.0)
    parser.add_argument("--plain-s", type=float, default=30.0)
    parser.add_argument("--tuned-s", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=Path("."))
    given = parser.parse_args()
    if given.job == "jpeg":
        from workloads import spec_of

        spec_of("jpeg-resnet50", small=given.fixed == [] or not Path("/dev/nvidia0").exists(), folder=None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    if given.do == "train":
        train(given.job, given.workers, given.seconds, given.batch_size)
    else:
        compare(given)


if __name__ == "__main__":
    main()
