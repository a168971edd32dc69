"""How far values of samples differ with each change: told of at most 64 samples, beside 1,000 that are changed by hand.

    python benchmarks/changes_values.py [CHANGE …] [--num-samples 1000] [--out FILE]

A sample is loaded twice from one random state, as it is and with the change, and made ready for training. Changes of
images are those of `loops.py`, those of a table and of texts the ones that `changes_exec.py` types into scripts. What a
reduced image is compared with is the whole one, made as small before any crop. Needs no GPU.
"""

import argparse
import json
import os
import random
import types
from pathlib import Path

import numpy as np
import torch
from changes_exec import CHANGED, HERE, typed_in
from loops import CHANGES, ENOUGH, jpegs_of
from PIL import Image
from torch.utils.data import DataLoader
from workloads import JPEGS, MEAN, SMALL, STD, make_jpegs

TRIED = {
    "tensor_decoding": (),
    "uint8_transfer": ("tensor_decoding",),
    "kept_images": (),
    "draft_decoding": (),
    "table_to_arrays": (),
    "tokenized_once": (),
}
"""Each change, and those that it is tried on top of."""
LARGE = ("draft_decoding",)
SCRIPTS = {"table_to_arrays": ("train_table.py", "arrays"), "tokenized_once": ("train_text.py", "once")}


def script(name, changes=()):
    """A module of a script of this folder, with a change typed in."""
    made = types.ModuleType(name)
    exec(compile(typed_in((HERE / name).read_text(), changes), name, "exec"), made.__dict__)
    return made.make_dataset()


def read_whole(path):
    """As large as `loops.read_draft` makes it, from all pixels."""
    image, size = Image.open(path), round(ENOUGH * 224)
    whole = image.convert("RGB")
    with Image.open(path) as reduced:
        reduced.draft("RGB", (size, size))
        return whole.resize(reduced.size, Image.Resampling.BOX)


def by_hand(name):
    """(The dataset as the change finds it, the one that it is compared with, the changed one)."""
    if name in SCRIPTS:
        file, change = SCRIPTS[name]
        plain = script(file)
        return plain, plain, script(file, CHANGED[change])
    os.environ[JPEGS] = folder = f"/tmp/loadtune-values-{name in LARGE}"
    make_jpegs(Path(folder), *((100, 1000, 1600) if name in LARGE else (300, 1000, 500)))
    found, compared = jpegs_of([]), jpegs_of([CHANGES[each] for each in TRIED[name]])
    changed = jpegs_of([CHANGES[each] for each in (*TRIED[name], name)])
    if name == "draft_decoding":
        compared.loader = read_whole
    return found, compared, changed


def ready(sample):
    """The part that values are compared of, as it is trained on."""
    values = sample[0]
    if values.dtype != torch.uint8:
        return values.double()
    return (values.double() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def loaded(dataset, index):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(index)
    return ready(dataset[index])


def seen(compared, changed, num_samples):
    """(Largest difference of a value, mean difference), over samples from all over the dataset."""
    most, means = 0.0, []
    for index in random.Random(1).sample(range(len(changed)), min(num_samples, len(changed))):
        apart = (loaded(compared, index) - loaded(changed, index)).abs()
        most, means = max(most, apart.max().item()), [*means, apart.mean().item()]
    return most, float(np.mean(means))


def told(name, dataset):
    """What a run tells of it, as `Values`, or why it is not offered."""
    from loadtune.changes.trial import Ways, examine
    from loadtune.changes.way import Way
    from loadtune.workload.loaders import LoaderParts

    parts = LoaderParts.of(DataLoader(dataset, 64, shuffle=True))
    found = examine(Ways(Way(loader=parts, indices=range(len(dataset)), memory_bytes=2**33)), TRIED[name], name)
    return found.values or found.refused


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", default=list(TRIED), metavar="CHANGE")
    parser.add_argument("--num-samples", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ |= {SMALL: "", "ROWS": "20000", "TEXTS": "5000"}
    torch.set_num_threads(1)
    lines = [
        f"| change | told: samples | largest | mean | by hand, {given.num_samples}: largest | mean |",
        "|---|---|---|---|---|---|",
    ]
    for name in given.changes:
        found, compared, changed = by_hand(name)
        values = told(name, found)
        most, mean = seen(compared, changed, given.num_samples)
        cells = f"{values} | – | –" if isinstance(values, str) else ""
        cells = cells or f"{values.num_samples} | {values.most:.3g} | {values.mean:.3g}"
        lines.append(f"| {name} | {cells} | {most:.3g} | {mean:.3g} |")
        print(json.dumps({"change": name, "told": str(values), "most": most, "mean": mean}), flush=True)
    print(*lines, sep="\n")
    if given.out:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
