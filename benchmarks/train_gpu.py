"""`train.py` on a GPU: as it is, tuned, with a change of its code, and without loading. The README's table.

    python benchmarks/train_gpu.py [--out FOLDER] [--time-budget 240] [--within-s 570] [--small]

`loadtune run -- python train.py` tunes it. Then the script trains alone, two epochs a start, in turns until the time is
over: each second epoch counts, by the script's own clock. A change of the code and a batch that stays on the GPU are
typed into it; nothing of loadtune is in these runs.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

from workloads import JPEGS, make_jpegs

from loadtune import load_result

HERE = Path(__file__).parent
EPOCH = re.compile(r"^epoch 1: [\d.]+ s, ([\d,]+) images/s", re.MULTILINE)

CHANGED = {
    "import DataLoader, Subset": "import DataLoader, Subset\nfrom functools import partial\n"
    "from torchvision.io import ImageReadMode, decode_image\nfrom torchvision.transforms import v2",
    "augment = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]": (
        "augment = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()])"
    ),
    "    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))\n": "",
    "ImageFolder(FOLDER, transforms.Compose([*augment, normalize]))": (
        "ImageFolder(FOLDER, augment, loader=partial(decode_image, mode=ImageReadMode.RGB))"
    ),
    "    optimizer = ": "    mean = 255 * torch.tensor((0.485, 0.456, 0.406), device=device)[:, None, None]\n"
    "    std = 255 * torch.tensor((0.229, 0.224, 0.225), device=device)[:, None, None]\n    optimizer = ",
    "images = images.contiguous(": "images = ((images - mean) / std).contiguous(",
}
"""Images are decoded and cropped as uint8 tensors, made floats on the GPU: text of the script, and what is typed."""
RESIDENT = {
    "    for epoch in": "    kept = [[each.to(device) for each in next(iter(loader))]] * len(loader)\n    for epoch in",
    "in loader:": "in kept:",
}
TINY = "torch.nn.Sequential(torch.nn.AvgPool2d(28), torch.nn.Flatten(), torch.nn.Linear(192, 10))"
SMALL = {"models.resnet50()": TINY}


class Bench:
    def __init__(self, given: argparse.Namespace) -> None:
        self.begun, self.given, self.out = time.monotonic(), given, given.out.absolute()
        self.rates = dict[str, list[float]]()
        self.out.mkdir(parents=True, exist_ok=True)
        folder, num_photos, num_files = Path("/tmp/loadtune-train-500"), 600, 20_480
        if given.small:
            num_photos, num_files = 16, 256
            os.environ["OMP_NUM_THREADS"] = "1"
        make_jpegs(folder, num_photos, num_files, 500)
        os.environ |= {JPEGS: str(folder), "PHOTOS": str(folder / "all"), "IMAGES": str(num_files)}
        source = typed((HERE / "train.py").read_text(), SMALL if given.small else {})
        for name, changes in {"train": {}, "changed": CHANGED, "resident": RESIDENT}.items():
            (self.out / f"{name}.py").write_text(typed(source, changes))

    def passed(self) -> float:
        return time.monotonic() - self.begun

    def tune(self) -> list[str]:
        """Options of the script that are the answer."""
        small = ["--device", "cpu", "--max-batch-size", "64"] if self.given.small else []
        words = ["--time-budget", str(self.given.time_budget), *small, "--out", str(self.out / "found")]
        command = [sys.executable, "-m", "loadtune", "run", *words, "--", "python", "train.py", *self.small()]
        begun = self.passed()
        with (self.out / "run.txt").open("w") as said:
            subprocess.run(
                command, stdout=said, stderr=subprocess.STDOUT, cwd=self.out, env=os.environ | {"COLUMNS": "120"}
            )
        print((self.out / "run.txt").read_text()[-3500:], f"run: {self.passed() - begun:.0f} s", sep="\n", flush=True)
        found = next((self.out / "found").rglob("result.json"))
        shutil.copy(found, self.out / "result.json")
        result = load_result(found)
        shutil.rmtree(self.out / "found")
        best = result.best_at_your_batch or result.best
        if best is None:
            raise SystemExit("no answer")
        loader, recipe = best.config.loader, best.config.recipe
        options = ["--batch-size", str(loader.batch_size), "--num-workers", str(loader.num_workers)]
        options += ["--bf16"] * (best.config.precision == "bf16")
        return options + ["--channels-last"] * (recipe.memory_format == "channels_last")

    def small(self) -> list[str]:
        return ["--batch-size", "16", "--num-workers", "1"] if self.given.small else []

    def time(self, name: str, script: str, options: list[str]) -> None:
        words = [sys.executable, f"{script}.py", "2", *options]
        done = subprocess.run(words, capture_output=True, text=True, cwd=self.out, timeout=240)
        rate = EPOCH.search(done.stdout)
        print(name, *options, rate[1] if rate else done.stderr[-500:], f"{self.passed():.0f} s", flush=True)
        if rate:
            self.rates.setdefault(name, []).append(float(rate[1].replace(",", "")))


def typed(source: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in the script"
        source = source.replace(old, new)
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "train-gpu")))
    parser.add_argument("--time-budget", type=int, default=240, help="of the run, in seconds")
    parser.add_argument("--within-s", type=float, default=570.0, help="all of it")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    bench = Bench(given)
    print(f"files: {bench.passed():.0f} s", flush=True)
    cores = len(os.sched_getaffinity(0))
    answer = bench.tune()
    rows = {
        "as it is": ("train", bench.small()),
        "workers = cores typed": ("train", [*bench.small(), "--num-workers", str(cores)]),
        "loadtune's answer": ("train", answer),
        "with the change of code": ("changed", answer),
        "without loading": ("resident", answer),
    }
    took_s = dict[str, float]()
    for name in cycle([*rows, *reversed(rows)]):
        begun = bench.passed()
        if begun + 1.1 * took_s.get(name, 0.0) > given.within_s:
            break
        bench.time(name, *rows[name])
        took_s[name] = bench.passed() - begun
    lines = ["| train.py | options | images/s of second epochs | mean | × as it is |", "|---|---|---|---|---|"]
    first = statistics.fmean(bench.rates["as it is"])
    for name, rates in bench.rates.items():
        mean = statistics.fmean(rates)
        all_of_them = " ".join(f"{rate:,.0f}" for rate in rates)
        lines.append(f"| {name} | {' '.join(rows[name][1])} | {all_of_them} | {mean:,.0f} | {mean / first:.2f} |")
    (bench.out / "table.md").write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
