"""`loadtune run -- python train.py` on a GPU, beside the same script with settings that were typed in.

    python benchmarks/script_gpu.py told [--out FOLDER] [--within-s 570] [--seconds 12] [--small]
    python benchmarks/script_gpu.py faults [--out FOLDER] [--within-s 300] [--small]

``told``: a ResNet-50 trains on JPEG files from batch 128, 4 workers and float32. `run` tunes it; then the script runs
alone and times itself: the settings it had, those that people type, the answer, and settings that trials had. The best
by hand is chosen by one round and timed again, in turns with the answer and with the settings as they were. Then one
epoch with its validation and checkpoint at the largest batch size that `run` names, and above it.
``faults``: five starts that run out of memory on the way, fp16 with a GradScaler, and two ranks that share the GPU, of
which one may use half as much of it.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from workloads import JPEGS, PHOTOS, spec_of

from loadtune import TuningResult, load_result
from loadtune.records.config import TrialConfig

SCRIPT = """
import argparse, os, time
from functools import partial
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import models, transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--precision", default="fp32")
parser.add_argument("--unpinned", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--tensor", action="store_true")
parser.add_argument("--resident", action="store_true")
parser.add_argument("--images", type=int, default=1 << 30)
parser.add_argument("--seconds", type=float)
parser.add_argument("--fractions", type=float, nargs="*", default=[])
parser.add_argument("--model", default="resnet50")
given = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
is_distributed, rank = "RANK" in os.environ, int(os.environ.get("RANK", "0"))
if is_distributed:
    dist.init_process_group("gloo")
if given.fractions and device.type == "cuda":
    torch.cuda.set_per_process_memory_fraction(given.fractions[rank])
side, mean, std = int(os.environ.get("SIDE", "224")), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
if given.tensor:
    read = {"loader": partial(decode_image, mode=ImageReadMode.RGB)}
    steps = [v2.RandomResizedCrop(side, antialias=True), v2.RandomHorizontalFlip()]
else:
    read, steps = {}, [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    steps.append(transforms.Normalize(mean, std))
files = ImageFolder(os.environ["PHOTOS"], transforms.Compose(steps), **read)
files = Subset(files, range(min(given.images, len(files))))
sampler = DistributedSampler(files) if is_distributed else None
loader = DataLoader(
    files,
    given.batch_size,
    shuffle=sampler is None,
    sampler=sampler,
    num_workers=given.workers,
    pin_memory=not given.unpinned and device.type == "cuda",
    drop_last=True,
)
validation = DataLoader(Subset(files, range(2 * given.batch_size)), given.batch_size, num_workers=2)
model = getattr(models, given.model)().to(device)
if given.channels_last:
    model = model.to(memory_format=torch.channels_last)
if is_distributed:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(given.precision)
scaler = torch.amp.GradScaler(device.type, enabled=given.precision == "fp16")
shift, scale = (255 * torch.tensor(each, device=device)[:, None, None] for each in (mean, std))


def delivered():
    kept = None
    for images, labels in loader:
        if kept is None or not given.resident:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            images = (images - shift) / scale if given.tensor else images
            kept = (images.contiguous(memory_format=torch.channels_last) if given.channels_last else images), labels
        yield kept
        while given.resident:
            yield kept


def outputs_of(images):
    with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        return model(images)


def finish():
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


first, begun, trained = None, None, 0
for epoch in range(1 if given.seconds is None else 1 << 20):
    for number, (images, labels) in enumerate(delivered()):
        loss = torch.nn.functional.cross_entropy(outputs_of(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if given.seconds is None:
            continue
        trained += len(labels)
        now = time.perf_counter()
        if first is None:
            first = now
        elif begun is None and now - first > given.seconds / 2 and number > 3 * given.workers:  # none is of the start
            begun, trained = finish(), 0
        elif begun is not None and now - begun > given.seconds:
            print("samples/s", trained / (finish() - begun), flush=True)
            os._exit(0)
model.eval()
with torch.no_grad():
    for images, labels in validation:
        outputs_of(images.to(device)).argmax(1)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
print("trained an epoch", flush=True)
"""
AS_IT_WAS = "128:4:fp32"
FAST = "16:bf16:channels-last"
BY_HAND = ("128:16:fp32", "128:16:bf16", "256:16:bf16", f"128:{FAST}", f"256:{FAST}", f"512:{FAST}")
"""BATCH:WORKERS:PRECISION[:flags], as people type them on 16 cores."""
LIMITS = (f"512:{FAST}:tensor", "512:2:bf16:channels-last:tensor:resident")
SMALL = {"128": "32", "256": "48", "512": "64", "16": "2", "14": "1", "4": "1", "bf16": "fp32", "fp16": "fp32"}


class Bench:
    """Runs the script in a folder of its own."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.begun, self.given, self.out = time.monotonic(), given, given.out.absolute()
        self.rates = dict[str, list[float]]()
        self.out.mkdir(parents=True, exist_ok=True)
        self.script = self.out / "train.py"
        self.script.write_text(SCRIPT)
        spec_of("jpeg-resnet50", small=given.small, folder=None)
        os.environ["PHOTOS"] = str(Path(os.environ[JPEGS]) / "all")
        if given.small:
            os.environ |= {"SIDE": "32", "OMP_NUM_THREADS": "1"}
        print(f"{PHOTOS['jpeg-resnet50'][given.small]} photographs, files, pixels: {self.passed():.0f} s", flush=True)

    def passed(self) -> float:
        return time.monotonic() - self.begun

    def command(self, *options: str) -> list[str]:
        return [sys.executable, str(self.script), *options, *(("--model", "resnet18") if self.given.small else ())]

    def tune(self, name: str, *options: str, script: list[str]) -> tuple[TuningResult | None, str]:
        """The result of the run, and what it printed."""
        folder, begun = self.out / f"found-{name}", self.passed()
        words = [sys.executable, "-m", "loadtune", "run", *options, "--out", str(folder), "--", *script]
        with (self.out / f"{name}.txt").open("w") as printed:
            done = subprocess.run(words, stdout=printed, stderr=subprocess.STDOUT, cwd=self.out, env=wide())
        said = (self.out / f"{name}.txt").read_text()
        print(f"{name}: exit code {done.returncode} after {self.passed() - begun:.0f} s", flush=True)
        found = next(folder.rglob("result.json"), None)
        if found is not None:
            shutil.copy(found, self.out / f"{name}.json")
        return (None if found is None else load_result(found)), said

    def time(self, setting: str) -> None:
        """Samples/s by the script's own clock, of one start."""
        if self.passed() > self.given.within_s - 25:
            print(f"no time left for {setting}", flush=True)
            return
        batch, workers, precision, *flags = setting.split(":")
        options = ["--batch-size", batch, "--workers", workers, "--precision", precision, *(f"--{f}" for f in flags)]
        done = self.ended(*options, "--seconds", str(self.given.seconds))
        rate = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith("samples/s")), None)
        print(setting, rate or done.stderr[-300:], f"{self.passed():.0f} s", flush=True)
        if rate is not None:
            self.rates.setdefault(setting, []).append(float(rate))

    def ended(self, *options: str) -> subprocess.CompletedProcess[str]:
        words = self.command(*options)
        return subprocess.run(words, capture_output=True, text=True, cwd=self.out, timeout=120)


def wide() -> dict[str, str]:
    return os.environ | {"COLUMNS": "120", "PYTHONUNBUFFERED": "1"}


def setting_of(config: TrialConfig) -> str:
    loader, precision = config.loader, config.precision
    flags = ["unpinned"] * (not loader.pin_memory) + ["channels-last"] * (config.recipe.memory_format != "contiguous")
    precision = "fp32" if precision == "own" else precision
    return ":".join([str(loader.batch_size), str(loader.num_workers), precision, *flags])


def trials_told(result: TuningResult) -> Iterator[tuple[str, float]]:
    """Of trials that differ most in their rates."""
    known = {setting_of(each.config): each.measurement.throughput.value for each in result.trials if each.measurement}
    ranked = sorted(known.items(), key=lambda each: each[1])
    for number in range(min(6, len(ranked))):
        yield ranked[round(number * (len(ranked) - 1) / max(1, min(6, len(ranked)) - 1))]


def told(bench: Bench) -> None:
    small = bench.given.small
    limits = ("--time-budget", "60", "--device", "cpu", "--max-batch-size", "64") if small else ()
    as_it_was, *others = (smaller(each) if small else each for each in (AS_IT_WAS, *BY_HAND, *LIMITS))
    by_hand, limits_by_hand = others[: len(BY_HAND)], others[len(BY_HAND) :]
    batch, workers, *_ = as_it_was.split(":")
    result, said = bench.tune("run", *limits, script=bench.command("--batch-size", batch, "--workers", workers))
    print(said[-3500:], flush=True)
    told_by = dict[str, str]()
    answer = None
    if result is not None:
        for setting, rate in trials_told(result):
            told_by[setting] = f"{rate:,.0f}"
        for each in result.finalists:
            told_by[setting_of(each.config)] = f"{each.throughput.value:,.0f} ± {each.throughput.half_width or 0:,.0f}"
        answer = result.best and setting_of(result.best.config)
    for setting in by_hand:
        bench.time(setting)
    best = max(by_hand, key=lambda each: max(bench.rates.get(each, [0.0])))
    chosen_by = bench.rates.get(best, [0.0])[0]
    bench.rates.pop(best, None)
    turns = list(dict.fromkeys(filter(None, (as_it_was, answer, best))))
    for number in range(2):
        for setting in turns if number == 0 else turns[::-1]:
            bench.time(setting)
    for precision in {} if result is None else {each.precision: None for each in result.ceilings[:1]}:
        ceiling = next(each for each in result.ceilings if each.precision == precision)
        print(f"ceiling {precision}: {ceiling.batch_size}, safe {ceiling.safe_batch_size}, {ceiling.limit}", flush=True)
        for size in (ceiling.safe_batch_size, ceiling.batch_size, round(ceiling.batch_size / 0.95)):
            if bench.passed() < bench.given.within_s - 40:
                words = ["--batch-size", str(size), "--workers", "12", "--images", str(3 * size)]
                done = bench.ended(*words, "--precision", "fp32" if precision == "own" else precision)
                outcome = "trained an epoch" if "trained an epoch" in done.stdout else done.stderr[-200:]
                print(f"batch {size}: {outcome} ({bench.passed():.0f} s)", flush=True)
    for setting in (*limits_by_hand, *(each for each in told_by if each not in bench.rates)):
        bench.time(setting)
    lines = [
        f"answer {answer}; best by hand {best}, chosen by {chosen_by:,.0f}",
        "| setting | told | typed, by the script's clock | told ÷ typed |",
        "|---|---|---|---|",
    ]
    for setting, rates in bench.rates.items():
        mean, said = statistics.fmean(rates), told_by.get(setting)
        ratio = f"{float(said.split()[0].replace(',', '')) / mean:.2f}" if said else "–"
        lines.append(f"| {setting} | {said or '–'} | {' '.join(f'{each:,.0f}' for each in rates)} | {ratio} |")
    (bench.out / "table.md").write_text("\n".join(lines))
    print(*lines, sep="\n")


def smaller(setting: str) -> str:
    return ":".join(SMALL.get(word, word) for word in setting.split(":"))


def faults(bench: Bench) -> None:
    """The script alone says how it ends at a size above the ceiling."""
    start = ["--batch-size", "16" if bench.given.small else "64", "--workers", "2" if bench.given.small else "8"]
    limits = ["--time-budget", "40", *(["--device", "cpu", "--max-batch-size", "64"] if bench.given.small else [])]
    rows = ["| run | exit code, answer | out of memory on the way | ceilings |", "|---|---|---|---|"]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    jobs = {"scaler": bench.command(*start, "--precision", "fp16")}
    jobs["ranks"] = [*ranks, *bench.command(*start, "--fractions", "0.3", "0.15")[1:]]
    jobs |= {f"oom-{n}": bench.command(*start, "--fractions", str(0.12 + 0.02 * n)) for n in range(5)}
    for name, script in jobs.items():
        if bench.passed() > bench.given.within_s - 60:
            break
        budget = ["--time-budget", "75", *limits[2:]] if name == "ranks" else limits
        result, said = bench.tune(name, *budget, script=script)
        if name in ("scaler", "ranks", "oom-0") or result is None or result.best is None:
            print(said[-2500:], flush=True)
        answer = setting_of(result.best.config) if result and result.best else "none"
        kinds = [] if result is None else [probe for each in result.ceilings for probe in each.probes if probe.failure]
        sizes = " ".join(f"{each.batch_size}:{each.failure.kind}" for each in kinds)
        ceilings = [] if result is None else [f"{e.precision} {e.batch_size} ({e.limit})" for e in result.ceilings]
        rows.append(f"| {name} | {answer} | {sizes} | {', '.join(ceilings)} |")
    print(*rows, sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("told", "faults"))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "script-gpu")))
    parser.add_argument("--seconds", type=float, default=8.0, help="that the script times, after half of it")
    parser.add_argument("--within-s", type=float, default=570.0)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    {"told": told, "faults": faults}[given.part](Bench(given))


if __name__ == "__main__":
    main()
