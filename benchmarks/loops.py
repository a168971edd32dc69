"""The plain PyTorch loop of `peers_child.py` with several settings in turn: nothing of loadtune is in it.

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
from cells import FAKE
from peers_child import Answer, Script, endless, send_bytes
from scipy.stats import t as student
from torch.utils.data import DataLoader
from torchvision import transforms
from workloads import MEAN, STD, _image_folder, jpegs, spec_of


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
        uint8="uint8" in rest,
    )


def trained_per_s(job, answer, device, seconds):
    """Samples/s of a fresh model and fresh workers."""
    script = Script(FAKE, answer, device)
    if job == "jpeg":
        dataset = _image_folder(transforms.PILToTensor()) if answer.uint8 else jpegs()
        mean, std = (255 * torch.tensor(each, device=device)[:, None, None] for each in (MEAN, STD))
        script.to_floats = lambda images: (images - mean) / std
    else:
        dataset = FAKE.make_dataset()
        if answer.uint8:
            send_bytes(dataset)
    loader = DataLoader(dataset, shuffle=True, drop_last=True, **answer.loader_kwargs())
    batches = map(script.on_device, endless(loader))
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
                rates[setting].append(trained_per_s(given.job, answer_of(setting), device, given.seconds))
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
