"""What the README shows: a training on JPEG files as it is, under `loadtune exec`, and tuned by `loadtune run`.

    python benchmarks/front.py --out FOLDER [--parts plain,exec,run] [--epochs 4] [--images 25600] [--small]

ResNet-50, batch 256, 4 workers, pinned, bf16. Keeps every line with its second as JSON lines, `exec.jsonl` among them,
from which `docs/pictures.py` draws.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from workloads import JPEGS, spec_of

SCRIPT = '''"""Trains a ResNet-50 on a folder of JPEG files."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Subset
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

FOLDER, IMAGES, SIDE, BATCH = "{folder}", {images}, {side}, {batch}


def make_dataset():
    transform = transforms.Compose([
        transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])
    return Subset(ImageFolder(FOLDER, transform), range(IMAGES))


def make_model():
    return models.{model}()


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader = DataLoader(make_dataset(), BATCH, shuffle=True, num_workers={workers}, pin_memory=device.type == "cuda")
    for epoch in range(int(sys.argv[1])):
        began = time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        print(f"epoch {{epoch}}: loss {{loss.item():.3f}}, {{seconds:.1f}} s, {{IMAGES / seconds:,.0f}} images/s", flush=True)


if __name__ == "__main__":
    main()
'''


def make_script(folder, images=100_000, small=False):
    """`train.py` in this folder, and the files that it reads. Returns its batch size and workers."""
    spec_of("jpeg-resnet50", small=small, folder=None)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"side": 64, "batch": 32, "workers": 1} if small else {"side": 224, "batch": 256, "workers": 4}
    model, images = ("squeezenet1_1", 256) if small else ("resnet50", images)
    script = SCRIPT.format(folder=f"{os.environ[JPEGS]}/all", images=images, model=model, **sizes)
    (folder / "train.py").write_text(script)
    return sizes["batch"], sizes["workers"]


def recorded(command, folder, file):
    """Run a command; its lines with the second at which each came."""
    began, lines = time.monotonic(), []
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    ) as process:
        for line in process.stdout:
            lines.append([round(time.monotonic() - began, 1), line.rstrip()])
            print(*lines[-1], flush=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if process.returncode:
        raise SystemExit(process.returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", default="plain,exec,run")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=25_600)
    parser.add_argument("--small", action="store_true", help="small files and a small model, for a CPU")
    parser.add_argument("--own", default="", help="more options of `loadtune run`, separated by spaces")
    given = parser.parse_args()
    batch_size, workers = make_script(given.out, given.images, given.small)
    train = [sys.executable, "train.py", str(given.epochs)]
    own = ["--batch-size", str(batch_size), "--num-workers", str(workers), "--amp", "fp32" if given.small else "bf16"]
    commands = {
        "plain": train,
        "exec": [sys.executable, "-m", "loadtune", "exec", "--", *train],
        "run": [
            *(sys.executable, "-m", "loadtune", "run", "--dataset", "train.py:make_dataset", "--model", "train.py:make_model"),
            *own, *([] if given.small else ["--pin-memory"]), *given.own.split(),
        ],
    }  # fmt: skip
    for part in given.parts.split(","):
        print(f"== {part}", flush=True)
        recorded(commands[part], given.out, given.out / f"{part}.jsonl")


if __name__ == "__main__":
    main()
