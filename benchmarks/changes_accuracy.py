"""Whether training learns as much from samples that torchvision decodes and augments as from Pillow's.

    python benchmarks/changes_accuracy.py [--seeds 5] [--epochs 120] [--out FOLDER] [--within-s 360]

A ResNet-18 learns shapes and their textures from few JPEG files that are made here, so that it needs augmentation:
RandomResizedCrop, RandomHorizontalFlip and ColorJitter. ``as before`` decodes and augments by Pillow and sends floats,
``changed`` by torchvision's decoder and transforms v2 and sends bytes, ``plain`` does not augment. All are tested on
the same images, decoded by Pillow. Seeds are trained at once, each by a process with one worker on the one GPU.
"""

import argparse
import io
import json
import math
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from scipy.stats import t as student
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from workloads import MEAN, STD

WAYS = ("as before", "changed", "plain")
SHAPES, TEXTURES = ("circle", "square", "triangle", "star", "cross"), ("stripes", "squares")
WIDTH, HEIGHT, SIDE = 120, 96, 64
CROP, JITTER = {"scale": (0.5, 1.0)}, (0.4, 0.4, 0.4, 0.1)


# Images


def corners(shape, chance):
    """Of a shape of radius 1 around 0, turned a little."""
    angle = math.radians(chance.uniform(-25, 25))
    if shape == "cross":
        flat = [(-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3)]
        points = flat + [(-x, -y) for x, y in flat]
    else:
        num = {"circle": 24, "square": 4, "triangle": 3, "star": 10}[shape]
        radii = (1.0, 0.45) if shape == "star" else (1.0, 1.0)
        turns = [2 * math.pi * (at + 0.5) / num for at in range(num)]
        points = [(radii[at % 2] * math.cos(turn), radii[at % 2] * math.sin(turn)) for at, turn in enumerate(turns)]
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x * cos - y * sin, x * sin + y * cos) for x, y in points]


def texture(name, chance):
    """Two colours, at a random pitch and angle, of the size of an image."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    turned, pitch = chance.uniform(0, math.pi), chance.uniform(9, 15)
    one = np.sin(2 * math.pi / pitch * (rows * math.sin(turned) + columns * math.cos(turned)))
    other = np.sin(2 * math.pi / pitch * (rows * math.cos(turned) - columns * math.sin(turned)))
    is_first = one > 0 if name == "stripes" else (one > 0) ^ (other > 0)
    first = np.array([chance.uniform(0, 255) for _ in range(3)])
    second = (first + np.array([chance.uniform(80, 175) for _ in range(3)])) % 255
    return np.where(is_first[..., None], first, second)


def drawn(label, seed):
    """A JPEG file: a shape with its texture, beside small ones of others, in noise."""
    chance = random.Random(seed)
    image = np.full((HEIGHT, WIDTH, 3), [chance.uniform(0, 255) for _ in range(3)])
    for shape, name, radius in [
        *((chance.choice(SHAPES), chance.choice(TEXTURES), chance.uniform(4, 9)) for _ in range(3)),
        (SHAPES[label % len(SHAPES)], TEXTURES[label // len(SHAPES)], chance.uniform(24, 40)),
    ]:
        mask = Image.new("L", (WIDTH, HEIGHT))
        x, y = chance.uniform(radius, WIDTH - radius), chance.uniform(radius, HEIGHT - radius)
        points = [(x + radius * across, y + radius * down) for across, down in corners(shape, chance)]
        ImageDraw.Draw(mask).polygon(points, fill=255)
        image = np.where(np.asarray(mask)[..., None] > 0, texture(name, chance), image)
    image += np.random.default_rng(seed).normal(0, 12, image.shape)
    with io.BytesIO() as file:
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        return file.getvalue()


def make_files(num_train, num_test):
    num_classes = len(SHAPES) * len(TEXTURES)
    labels = [number % num_classes for number in range(num_train + num_test)]
    with get_context("fork").Pool() as pool:
        files = list(zip(pool.starmap(drawn, [(label, at) for at, label in enumerate(labels)]), labels, strict=True))
    return files[:num_train], files[num_train:]


# Ways to load them


def by_pillow(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


def by_torchvision(data):
    return decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)


FLOATS = (transforms.ToTensor(), transforms.Normalize(MEAN, STD))


def reading(way):
    """(What decodes a file, the transform)."""
    if way == "plain":
        return by_pillow, transforms.Compose([transforms.Resize((SIDE, SIDE)), *FLOATS])
    made, decode = (v2, by_torchvision) if way == "changed" else (transforms, by_pillow)
    steps = [made.RandomResizedCrop(SIDE, **CROP), made.RandomHorizontalFlip(), made.ColorJitter(*JITTER)]
    return decode, made.Compose([*steps, *(() if way == "changed" else FLOATS)])


class Files(Dataset):
    def __init__(self, files, decode, transform):
        self.files, self.decode, self.transform = files, decode, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        data, label = self.files[index]
        return self.transform(self.decode(data)), label


# One training


def train(given):
    """Prints the share of the test images that it gets right after each tenth of its epochs."""
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    training, testing = pickle.loads(given.files.read_bytes())
    on_gpu = device.type == "cuda"
    loader = DataLoader(
        Files(training, *reading(given.way)),
        given.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        pin_memory=on_gpu,
        persistent_workers=True,
        prefetch_factor=8,
    )
    images, labels = (torch.stack(each) for each in zip(*tested(testing), strict=True))
    model = models.resnet18(num_classes=len(SHAPES) * len(TEXTURES)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    num_steps = given.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=num_steps, pct_start=0.2)
    mean, std = (torch.tensor(each, device=device)[:, None, None] for each in (MEAN, STD))
    for epoch in range(given.epochs):
        model.train()
        for batch, targets in loader:
            batch, targets = batch.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            if batch.dtype == torch.uint8:
                batch = batch.float().div_(255).sub_(mean).div_(std)
            batch = batch.to(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if (epoch + 1) % max(1, given.epochs // 10) == 0 or epoch + 1 == given.epochs:
            right = accuracy(model, images, labels, device)
            print(json.dumps({"epoch": epoch + 1, "loss": loss.item(), "accuracy": right}), flush=True)


def tested(files):
    samples = Files(files, *reading("plain"))
    for number in range(len(samples)):
        image, label = samples[number]
        yield image, torch.tensor(label)


@torch.no_grad()
def accuracy(model, images, labels, device):
    model.eval()
    found = [model(part.to(device)).argmax(1).cpu() for part in images.split(500)]
    return (torch.cat(found) == labels).float().mean().item()


# All of them


def started(given, files, way, seed):
    command = [sys.executable, __file__, "--way", way, "--seed", str(seed), "--files", str(files)]
    command += ["--epochs", str(given.epochs), "--batch-size", str(given.batch_size)]
    out = given.out / f"{way.replace(' ', '-')}-{seed}.txt"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with out.open("w") as printed:
        return out, subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=environment)


def seen_in(out):
    """{epoch: what was printed after it}."""
    lines = (json.loads(line) for line in out.read_text().splitlines() if line.startswith("{"))
    return {each["epoch"]: each for each in lines}


def differences(before, changed):
    """(Mean, half of its 95% interval) by pairs of one seed, and by Welch's test of the two groups."""
    pairs = [other - one for one, other in zip(before, changed, strict=True)]
    num, mean = len(pairs), statistics.fmean(pairs)
    paired = student.ppf(0.975, num - 1) * statistics.stdev(pairs) / math.sqrt(num)
    parts = [statistics.variance(each) / num for each in (before, changed)]
    degrees = sum(parts) ** 2 / (sum(part**2 / (num - 1) for part in parts) or math.inf) or 1.0
    return mean, paired, student.ppf(0.975, degrees) * math.sqrt(sum(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "changes-accuracy")))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plain-seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-train", type=int, default=800)
    parser.add_argument("--num-test", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--within-s", type=float, default=360.0)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        train(given)
        return
    begun = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    nums = dict(zip(WAYS, (given.seeds, given.seeds, given.plain_seeds), strict=True))
    todo = [(way, seed) for seed in range(max(nums.values())) for way in WAYS if seed < nums[way]]
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files.pickle"
        files.write_bytes(pickle.dumps(make_files(given.num_train, given.num_test)))
        print(f"files made after {time.monotonic() - begun:.0f} s", flush=True)
        outs, running, left = {}, [], list(todo)
        while running or left:
            running = [child for child in running if child.poll() is None]
            while left and len(running) < given.at_once:
                outs[left[0]], child = started(given, files, *left[0])
                running.append(child)
                left.pop(0)
            if time.monotonic() - begun > given.within_s:
                print("the time is over: all are compared after the last epoch that each came to", flush=True)
                for child in running:
                    child.kill()
                break
            time.sleep(0.5)
    seen = {at: found for at, out in outs.items() if (found := seen_in(out))}
    last = min(map(max, seen.values()))  # that all came to
    ends = {at: found[last] for at, found in seen.items()}
    rates = {at: 100 * end["accuracy"] for at, end in ends.items()}
    lines = [
        "| way | accuracy of each seed, % | mean | standard deviation | loss at the end |",
        "|---|---|---|---|---|",
    ]
    for way in WAYS:
        own = [rate for (of, _), rate in rates.items() if of == way]
        losses = [ends[at]["loss"] for at in rates if at[0] == way]
        if own:
            spread = f"{statistics.stdev(own):.2f}" if own[1:] else "–"
            each = " ".join(f"{rate:.1f}" for rate in own)
            lines.append(
                f"| {way} | {each} | {statistics.fmean(own):.2f} | {spread} | {statistics.fmean(losses):.3f} |"
            )
    both = [seed for seed in range(given.seeds) if all((way, seed) in rates for way in WAYS[:2])]
    if both[1:]:
        mean, paired, welch = differences(*([rates[way, seed] for seed in both] for way in WAYS[:2]))
        lines.append(f"\nchanged − as before: {mean:+.2f} points ± {paired:.2f} (95%, by pairs), ± {welch:.2f} (Welch)")
    lines.append(f"{given.num_train} files, after {last} of {given.epochs} epochs; {time.monotonic() - begun:.0f} s")
    (given.out / "accuracy.md").write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
