"""The plain PyTorch loop of `peers_child.py` with several settings in turn: nothing of loadtune is in it.

    python benchmarks/loops.py --job fake|jpeg --settings bf16:256:16 bf16:512:16:tensor:uint8 fp32:128:8
                               [--rounds 4] [--seconds 20] [--told FOLDER]

Settings: PRECISION:BATCH:WORKERS[:unpinned][:contiguous][:fused], then the changes of the code.
``:uint8`` sends bytes and makes floats on the GPU; ``:tensor`` decodes JPEG files by torchvision and augments uint8
tensors by its v2 transforms; ``:draft`` decodes them at a reduced size; ``:kept`` keeps decoded images in memory that
workers share. ``:resident`` trains on one batch that stays on the GPU: the compute-only limit. ``--told`` adds the
answer of the run in that folder, its answer with changes, typed in here by hand, and what the run told of both. Each
loop has fresh workers; a third of its seconds goes by first. A queue that shrank is taken off what trained. The order
is reversed in every second round. Last: ratios to the first setting, with 95% intervals from the spread over rounds.
"""

import argparse
import itertools
import math
import mmap
import os
import statistics
import sys
import time
from functools import partial

import numpy as np
import torch
from cells import FAKE
from peers_child import Answer, Script, endless, send_bytes
from PIL import Image
from scipy.stats import t as student
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2
from workloads import MEAN, STD, image_folder, spec_of

CHANGES = {
    "draft_decoding": "draft",
    "tensor_decoding": "tensor",
    "uint8_transfer": "uint8",
    "kept_images": "kept",
    "fused_optimizer": "fused",
}
"""As a run names them, and as a setting does."""

ENOUGH = 1.5
"""Times the size of a sample that a reduced image keeps at least, as in the lines that a run tells to paste."""


def answer_of(setting):
    precision, batch, workers, *rest = setting.split(":")
    return Answer(
        batch_size=int(batch),
        num_workers=int(workers),
        pin_memory="unpinned" not in rest,
        non_blocking="unpinned" not in rest,
        persistent_workers=True,
        precision=precision,
        channels_last="contiguous" not in rest,
        fused="fused" in rest,
        uint8="uint8" in rest,
    )


def read_draft(size, made, path):
    with Image.open(path) as image:
        image.draft("RGB", (size, size))
        return made(image.convert("RGB"))


class Kept:
    """Images of one size, as they were decoded when they were first read, in memory that forked workers share."""

    def __init__(self, read, paths):
        self.read, self.places = read, {path: place for place, path in enumerate(paths)}
        self.paths, first = paths, read(paths[0])
        self.is_tensor = isinstance(first, torch.Tensor)
        shape = (len(paths), *np.asarray(first).shape)
        self.pixels = np.frombuffer(mmap.mmap(-1, math.prod(shape)), np.uint8).reshape(shape)
        self.are_there = np.frombuffer(mmap.mmap(-1, len(paths)), np.bool_)

    def __call__(self, path):
        place = self.places[path]
        if not self.are_there[place]:
            self.pixels[place] = np.asarray(self.read(path))
            self.are_there[place] = True
        pixels = self.pixels[place]
        return torch.from_numpy(pixels) if self.is_tensor else Image.fromarray(pixels)

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        self(self.paths[index])
        return 0

    def fill(self, num_workers):
        for _ in DataLoader(self, 256, num_workers=num_workers):
            pass


def jpegs_of(words):
    """The files of `workloads.py` as somebody would read them who makes these changes by hand."""
    dataset = _read(words)
    if "kept" in words:
        dataset.loader = Kept(dataset.loader, [path for path, _ in dataset.samples])
    return dataset


def _read(words):
    side = 64 if os.environ["WORKLOAD_SMALL"] else 224
    if "tensor" in words:
        floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        steps = [v2.RandomResizedCrop(side, antialias=True), v2.RandomHorizontalFlip()]
        transform = v2.Compose([*steps, *([] if "uint8" in words else floats)])
        smaller = partial(read_draft, round(ENOUGH * side), v2.functional.pil_to_tensor)
        read = smaller if "draft" in words else partial(decode_image, mode=ImageReadMode.RGB)
        return image_folder(transform, loader=read)
    floats = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    steps = [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*steps, *([transforms.PILToTensor()] if "uint8" in words else floats)])
    reading = {"loader": partial(read_draft, round(ENOUGH * side), Image.Image.copy)} if "draft" in words else {}
    return image_folder(transform, **reading)


def trained_per_s(job, setting, device, seconds):
    """Samples/s of a fresh model and fresh workers."""
    words, answer = setting.split(":")[3:], answer_of(setting)
    script = Script(FAKE, answer, device)
    if job == "jpeg":
        dataset = jpegs_of(words)
        if "kept" in words:
            dataset.loader.fill(answer.num_workers)
        mean, std = (255 * torch.tensor(each, device=device)[:, None, None] for each in (MEAN, STD))
        script.to_floats = lambda images: (images - mean) / std
    else:
        dataset = FAKE.make_dataset()
        if answer.uint8:
            send_bytes(dataset)
    loader = DataLoader(dataset, shuffle=True, drop_last=True, **answer.loader_kwargs())
    batches = map(script.on_device, endless(loader))
    if "resident" in words:
        batches = itertools.repeat(next(batches))
    script.run(batches, 1, seconds / 3, math.inf)
    before = ready(loader._iterator)
    ends = script.run(batches, 1, seconds, math.inf)
    shrunk = min(0, ready(loader._iterator) - before)
    return (len(ends) - 1 + shrunk) * answer.batch_size / (ends[-1] - ends[0])


def ready(batches):
    """Batches made and not taken."""
    if not hasattr(batches, "_task_info"):
        return 0
    queues = {batches._data_queue, batches._worker_result_queue}
    return sum(len(each) == 2 for each in batches._task_info.values()) + sum(queue.qsize() for queue in queues)


def setting_of(config):
    """Of a configuration of a run. A change that cannot be typed in here stays in it by its name."""
    loader, recipe = config.loader, config.recipe
    usual = {"unpinned": loader.pin_memory, "contiguous": recipe.memory_format == "channels_last"}
    words = [word for word, is_usual in {**usual, "fused": not recipe.fused_optimizer}.items() if not is_usual]
    words += [CHANGES.get(name, f"without {name}") for name in config.remedies if name != "fused_optimizer"]
    return ":".join(map(str, (config.precision, loader.batch_size, loader.num_workers, *words)))


def told_by(folder):
    """{setting: samples/s with their interval} of the answer, and of the fastest contestant with changes."""
    from loadtune import load_result

    result = load_result(folder)
    changed = [each for each in result.finalists if each.config.remedies and each.unconfirmed is None]
    wanted = [each for each in result.finalists if result.best and each.config == result.best.config]
    wanted += sorted(changed, key=lambda each: -each.samples_per_s)[:1]
    return {setting_of(each.config): each.throughput for each in wanted}


def measured(job, settings, *, rounds, seconds, within_s=math.inf):
    """{setting: samples/s of each round}. No loop begins after `within_s` seconds."""
    begun, rates = time.monotonic(), {setting: [] for setting in settings}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for number in range(rounds):
        for setting in settings if number % 2 == 0 else settings[::-1]:
            if time.monotonic() - begun < within_s:
                rates[setting].append(trained_per_s(job, setting, device, seconds))
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                print(number, setting, f"{rates[setting][-1]:,.0f}", file=sys.stderr, flush=True)
    return {setting: own for setting, own in rates.items() if own}


def table(rates, told):
    """Lines. ``told``: {setting: samples/s with their interval}, as a run told them."""
    whole = min(map(len, rates.values()))
    logs = {setting: [math.log(rate) for rate in own[:whole]] for setting, own in rates.items()}
    blocks = [statistics.fmean(each) for each in zip(*logs.values(), strict=True)]
    squares = sum(
        (value - statistics.fmean(own) - block + statistics.fmean(blocks)) ** 2
        for own in logs.values()
        for value, block in zip(own, blocks, strict=True)
    )
    degrees = (len(rates) - 1) * (whole - 1)
    width = student.ppf(0.975, degrees) * math.sqrt(squares / degrees * 2 / whole) if degrees else math.nan
    yield "| setting | samples/s of each loop | mean | told | told ÷ mean | ratio to the first (95%) |"
    yield "|---|---|---|---|---|---|"
    first = next(iter(rates))
    for setting, own in rates.items():
        mean, of = statistics.fmean(own), told.get(setting)
        ratio = math.exp(statistics.fmean(logs[setting]) - statistics.fmean(logs[first]))
        said = f"{of.value:,.0f} ± {of.half_width or math.nan:,.0f} | {of.value / mean:.2f}" if of else "– | –"
        each = " ".join(f"{rate:,.0f}" for rate in own)
        low, high = ratio / math.exp(width), ratio * math.exp(width)
        yield f"| {setting} | {each} | {mean:,.0f} | {said} | {ratio:.2f} ({low:.2f} to {high:.2f}) |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="fake", choices=("fake", "jpeg"))
    parser.add_argument("--settings", nargs="*", default=[])
    parser.add_argument("--told")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--within-s", type=float, default=math.inf)
    given = parser.parse_args()
    if given.job == "jpeg" and not os.environ.get("WORKLOAD_JPEGS"):
        spec_of("jpeg-resnet50", small=False, folder=None)
    told = told_by(given.told) if given.told else {}
    settings = list(dict.fromkeys([*told, *given.settings]))
    rates = measured(given.job, settings, rounds=given.rounds, seconds=given.seconds, within_s=given.within_s)
    print(*table(rates, told), sep="\n")


if __name__ == "__main__":
    main()
