"""Whether changes of the code are offered only where they can work, on the pipelines of `steps_pipelines.py`.

    python benchmarks/changes_pipelines.py [PIPELINE ...] [--jobs 1] [--json FILE]
    python benchmarks/changes_pipelines.py --by-hand

Each pipeline has a process of its own. There all changes of loading are tried as `loadtune exec` tries them, in at most
60 CPU seconds, and then each of them alone. *CPU* is what the first took. Of each change: CPU seconds of loading
without it ÷ with it, and how far values differ, at most / on average. *Left* is what is there then, and was not before:
attributes of libraries that are others, threads, child processes, shared memory, and files beside the data and in the
folder of temporary files. A pipeline whose packages are missing is left out, and says so.

``--by-hand``: changes that are typed in by hand, or by the lines that are offered. What is told is beside what is true
of 100 samples, loaded without the change and with it in turn, three times, from equal random states.
"""

import argparse
import copy
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import steps
import torch
from PIL import Image

from loadtune.changes import CHANGES
from loadtune.changes.trial import Ways, examine, stacked
from loadtune.changes.way import Way
from loadtune.inflight.spare import MOST_CPU_S
from loadtune.workload.loaders import LoaderParts

OWNERS = {
    "PIL.Image": [""],
    "torchvision.transforms.functional": [""],
    "torchvision.transforms.v2": ["Normalize", "ToDtype"],
    "pandas.core.indexing": ["_LocationIndexer", "_iLocIndexer", "_LocIndexer"],
    "transformers": ["PreTrainedTokenizerBase"],
}
"""Modules, and classes in them, of which changes replace attributes."""


def way_of(name, folder):
    """The way of a pipeline's loader, as the hook of `exec` would find it on a machine with a GPU."""
    module = steps.module_of(steps.PIPELINES, timed=False)
    parts = LoaderParts.of(steps.loader_of(module, name, folder, None, num_workers=1, is_timed=False))
    num = 0 if parts.is_iterable else len(parts.dataset)
    return Way(loader=parts, indices=range(num), num_samples=num, memory_bytes=2**33)


def attributes():
    """(Module, class, name) → what can be called there, of libraries that are loaded."""
    found = {}
    for module, names in OWNERS.items():
        for name in names if module in sys.modules else ():
            owner = getattr(sys.modules[module], name, None) if name else sys.modules[module]
            found |= {(module, name, each): value for each, value in vars(owner or object).items() if callable(value)}
    return found


def processes():
    """Threads of this process, and processes that it started."""
    tasks = Path("/proc/self/task")
    return {each for task in tasks.iterdir() for each in (task.name, *(task / "children").read_text().split())}


def files(*folders):
    """In the folders, and segments of shared memory of this process: others belong to other ones."""
    return {
        *Path("/dev/shm").glob(f"torch_{os.getpid()}_*"),
        *(each for folder in folders for each in folder.rglob("*")),
    }


def cpu_s():
    return time.process_time() + sum(os.times()[2:4])


def told(each):
    values = {} if each.values is None else {"most": each.values.most, "mean": each.values.mean}
    cheaper = {} if each.cheaper is None else {"cheaper": [each.cheaper.low, each.cheaper.value, each.cheaper.high]}
    return {"change": each.name, "refused": each.refused, "code": each.code} | cheaper | values


def tried(name, given):
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        data, temporary = Path(folder, "data"), Path(folder, "tmp")
        data.mkdir()
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        way = way_of(name, data)
        if not way.loader.is_iterable:
            way.load(way.indices[:1])  # libraries start their threads, and replace attributes themselves
        before, begun_s = (attributes(), processes(), files(data, temporary)), cpu_s()
        together = [told(each) for each in stacked(way, lambda: cpu_s() - begun_s >= MOST_CPU_S, [])]
        used_s = cpu_s() - begun_s
        size = way.loader.batch_size
        alone = [told(examine(Ways(way), (), each, batch_size=size)) for each in CHANGES if CHANGES[each].loads]
        left = [*map(str, (processes() - before[1]) | (files(data, temporary) - before[2]))]
        after = attributes()
        left += [".".join(filter(None, key)) for key, value in before[0].items() if after.get(key) is not value]
        return {"cpu_s": used_s, "offered": together, "alone": alone, "left": left}


def figures(each):
    low, value, high = each["cheaper"]
    limits = "?" if low is None else f"{low:.2f} to {high:.2f}"
    return f"{each['change']} {value:.2f} ({limits}), values {each['most']:.2g} / {each['mean']:.2g}"


def line(row):
    """Cells of a row: those refused for one reason are together."""
    why = defaultdict(list)
    for each in row["alone"]:
        why[each["refused"]].append(each["change"])
    together, alone = ([figures(each) for each in row[key] if not each["refused"]] for key in ("offered", "alone"))
    refused = [f"{', '.join(names)}: {reason}" for reason, names in why.items() if reason]
    return f"{row['cpu_s']:.1f}", *("<br>".join(each) or "–" for each in (together, alone, refused, row["left"]))


# By hand


def drafted(dataset, code):
    """By the lines as they are. Compared with whole images that are made as small before any crop."""
    compared = copy.deepcopy(dataset)
    exec(code, {"dataset": dataset})
    compared.parts[0].dataset.loader = read_small
    return compared


def read_small(path):
    whole = read(path)
    with Image.open(path) as reduced:
        reduced.draft("RGB", (192, 192))
        return whole.resize(reduced.size, Image.Resampling.BOX)


def kept(dataset, code):
    """By the class of the lines, in a dataset of timm that opens its files itself."""
    names, compared = {}, copy.copy(dataset)
    exec(code[: code.index("# in __init__")], names)
    images = names["KeptImages"](read, [path for path, _ in dataset.reader.samples], 64 * 3 * 500 * 400 + 1)

    class Kept(type(dataset)):
        def __getitem__(self, index):
            path, target = self.reader.samples[index]
            return self.transform(images(path)), target

    dataset.__class__ = Kept
    return compared


def read(path):
    return Image.open(path).convert("RGB")


HANDS = {("augment", "kept_images"): kept, ("mixture", "draft_decoding"): drafted}
"""They change a dataset, and return the one that its values are compared with."""
NUM_BY_HAND, ROUNDS = 100, 3


def loaded(dataset, index):
    """(CPU seconds, values)."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(index)
    begun_s = time.process_time()
    values = dataset[index % len(dataset)][0]
    return time.process_time() - begun_s, values.double()


def by_hand(name, change, given):
    """A row of the table: what was told of the change beside what is true."""
    with tempfile.TemporaryDirectory() as folder:
        way = way_of(name, Path(folder))
        each = examine(Ways(way), (), change, batch_size=way.loader.batch_size)
        if each.refused is not None:
            return {"reason": each.refused}
        plain = way.loader.dataset
        changed = copy.deepcopy(plain)
        compared = HANDS[name, change](changed, each.code)
        indices, ratios = range(NUM_BY_HAND), []
        for _ in range(ROUNDS + 1):  # in the first, files are opened and images kept
            before_s, after_s = (sum(loaded(each, index)[0] for index in indices) for each in (plain, changed))
            ratios.append(before_s / after_s)
        differences = [(loaded(compared, index)[1] - loaded(changed, index)[1]).abs() for index in indices]
        most = max(float(apart.max()) for apart in differences)
        mean = statistics.fmean(float(apart.mean()) for apart in differences)
        return {"told": told(each), "cheaper": ratios[1:], "most": most, "mean": mean}


def line_by_hand(row):
    ratios = ", ".join(f"{each:.2f}" for each in row["cheaper"])
    return figures(row["told"]), f"{ratios}, values {row['most']:.2g} / {row['mean']:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipelines", nargs="*", default=steps.NAMES)
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--within-s", type=float, default=3000.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    steps.get_context("forkserver").set_forkserver_preload([*steps.PRELOADED])
    given.ends = time.monotonic() + given.within_s
    if given.by_hand:
        print("| pipeline | told | true |\n|---|---|---|")
        found = steps.printed(line_by_hand, by_hand, [*HANDS], given)
    else:
        print("| pipeline | CPU, s | offered | alone, not refused | refused | left |\n|---|---|---|---|---|---|")
        found = steps.printed(line, tried, [(name,) for name in given.pipelines], given)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
