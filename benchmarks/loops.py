"""Plain PyTorch loops of several settings in turn: what trains fastest, with nothing of loadtune in the loop.

    python benchmarks/loops.py --job fake|jpeg --settings bf16:256:16 fp16:512:16:uint8 fp32:128:8
                               [--rounds 4] [--seconds 20] [--told FOLDER]

A setting is PRECISION:BATCH:WORKERS[:unpinned][:uint8][:contiguous]; ``uint8`` sends bytes and makes floats on the GPU.
``--told`` adds the answer of the run in that folder, its answer with changes of the code where that is uint8 transfer,
and what the run told of both. Each loop has fresh workers; a third of its seconds goes by first. A queue that shrank
is taken off what trained. The order is reversed in every second round. Last: ratios to the first setting, with 95%
intervals from the spread over rounds.
"""

import argparse
import math
import os
import statistics
import sys
import time

import torch
from scipy.stats import t as student
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import FakeData
from torchvision.models import resnet50
from torchvision.transforms import v2
from workloads import MEAN, STD, _image_folder, spec_of

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def dataset_of(job, uint8):
    if job == "jpeg":
        return _image_folder(
            *([transforms.PILToTensor()] if uint8 else [transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
        )
    return FakeData(1_281_167, (3, 224, 224), 1000, v2.ToImage() if uint8 else transforms.ToTensor())


class Loop:
    """One setting's training; the model is made once a setting."""

    def __init__(self, job, setting, device):
        self.precision, batch, workers, *rest = setting.split(":")
        self.batch, self.workers, self.uint8, self.pinned = (
            int(batch),
            int(workers),
            "uint8" in rest,
            "unpinned" not in rest,
        )
        self.job, self.device = job, device
        self.format = torch.contiguous_format if "contiguous" in rest else torch.channels_last
        self.model = resnet50().to(device, memory_format=self.format).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision == "fp16")
        self.mean, self.std = (255 * torch.tensor(each, device=device)[:, None, None] for each in (MEAN, STD))

    def step(self, images, labels):
        images = images.to(self.device, non_blocking=True, memory_format=self.format)
        labels = labels.to(self.device, non_blocking=True)
        if self.uint8:
            images = (images - self.mean) / self.std if self.job == "jpeg" else images.float().div_(255)
        with torch.autocast(self.device.type, dtype=DTYPES.get(self.precision), enabled=self.precision in DTYPES):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, seconds):
        """Samples/s."""
        loader = DataLoader(
            dataset_of(self.job, self.uint8),
            self.batch,
            shuffle=True,
            drop_last=True,
            num_workers=self.workers,
            pin_memory=self.pinned,
            persistent_workers=self.workers > 0,
        )
        batches = iter(loader)
        self._until(batches, loader, seconds / 3)
        before, count, begun = ready(batches), 0, time.monotonic()
        count, batches = self._until(batches, loader, seconds)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        rate = (count + min(0, ready(batches) - before)) * self.batch / (time.monotonic() - begun)
        del batches, loader
        return rate

    def _until(self, batches, loader, seconds):
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            self.step(*batch)
            count += 1
        return count, batches


def ready(batches):
    """Batches made and not taken."""
    if not hasattr(batches, "_task_info"):
        return 0
    queues = {batches._data_queue, batches._worker_result_queue}
    return sum(len(each) == 2 for each in batches._task_info.values()) + sum(queue.qsize() for queue in queues)


def told_by(folder):
    """{setting: samples/s} of the answer, and of the one with uint8 transfer."""
    from loadtune import load_result

    result = load_result(folder)
    wanted = [f for f in result.finalists if f.config == result.best.config or f.config.remedies == ("uint8_transfer",)]
    named = {}
    for each in wanted:
        loader = each.config.loader
        rest = ("" if loader.pin_memory else ":unpinned") + (":uint8" if each.config.remedies else "")
        rest += "" if each.config.recipe.memory_format == "channels_last" else ":contiguous"
        named[f"{each.config.precision}:{loader.batch_size}:{loader.num_workers}{rest}"] = each.samples_per_s
    return named


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="fake", choices=("fake", "jpeg"))
    parser.add_argument("--settings", nargs="*", default=[])
    parser.add_argument("--told")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--within-s", type=float, default=math.inf)
    given = parser.parse_args()
    begun = time.monotonic()
    if given.job == "jpeg" and not os.environ.get("WORKLOAD_JPEGS"):
        spec_of("jpeg-resnet50", small=False, folder=None)
    told = told_by(given.told) if given.told else {}
    settings = list(dict.fromkeys([*told, *given.settings]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates = {setting: [] for setting in settings}
    for number in range(given.rounds):
        for setting in settings if number % 2 == 0 else settings[::-1]:
            if time.monotonic() - begun < given.within_s:
                rates[setting].append(Loop(given.job, setting, device).run(given.seconds))
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                print(number, setting, f"{rates[setting][-1]:,.0f}", file=sys.stderr, flush=True)
    whole = min(map(len, rates.values()))
    logs = {setting: [math.log(rate) for rate in own[:whole]] for setting, own in rates.items()}
    blocks = [statistics.fmean(each) for each in zip(*logs.values(), strict=True)]
    squares = sum(
        (value - statistics.fmean(own) - block + statistics.fmean(blocks)) ** 2
        for own in logs.values()
        for value, block in zip(own, blocks, strict=True)
    )
    degrees = (len(settings) - 1) * (whole - 1)
    width = student.ppf(0.975, degrees) * math.sqrt(squares / degrees * 2 / whole) if degrees else math.nan
    print("setting | samples/s of each loop | mean | told | told ÷ mean | ratio to the first (95%)")
    for setting in settings:
        mean, of = statistics.fmean(rates[setting]), told.get(setting)
        ratio = math.exp(statistics.fmean(logs[setting]) - statistics.fmean(logs[settings[0]]))
        said = f"{of:,.0f} | {of / mean:.2f}" if of else "– | –"
        each = " ".join(f"{rate:,.0f}" for rate in rates[setting])
        low, high = ratio / math.exp(width), ratio * math.exp(width)
        print(f"{setting} | {each} | {mean:,.0f} | {said} | {ratio:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
