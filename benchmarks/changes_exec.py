"""What `loadtune exec` predicts of changes of the code, beside the same script with these changes typed in by hand.

    python benchmarks/changes_exec.py train|large|table|text [--epochs 7] [--out FOLDER] [--within-s 300]
        [--changes tensor:uint8 …]

``train`` is `train.py` in bf16: JPEG files of 500 × 400 pixels. ``large`` is the same with files of 1600 × 1280 and a
ResNet-18, ``table`` is `train_table.py`, ``text`` `train_text.py`. `exec` runs the script first. Then the script runs
alone with the workers that `exec` kept, and then with these and the changes that `exec` advised, or with ``--changes``.
First epochs are left out. A gain that was predicted should lie within 15% of the true one.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from loops import CHANGES
from workloads import JPEGS, MEAN, SMALL, STD, make_jpegs

HERE = Path(__file__).parent
SCRIPTS = {"train": "train.py", "large": "train.py", "table": "train_table.py", "text": "train_text.py"}
PHOTOS = {"train": (600, 25_600, 500), "large": (200, 6_144, 1_600)}
"""Photographs, files that are links to them, pixels of the longer side."""
EPOCHS = {"train": 20, "large": 30, "table": 60, "text": 40}
USUAL = {"train": "tensor:uint8", "large": "tensor:uint8", "table": "arrays", "text": "once"}
"""Changes that are timed in any case."""
ADVISED, MORE_S = "are predicted to gain", 15.0
"""What `exec` says while the script runs, which need not run much longer then."""
EPOCH = re.compile(r"^epoch \d+: [\d.]+ s, ([\d,]+) \w+/s", re.MULTILINE)
ENOUGH = 0.15

SMALL_TEXT = {
    "torch.bfloat16)": "torch.bfloat16, False)",
    "models.resnet50()": "torch.nn.Sequential(torch.nn.AvgPool2d(28), torch.nn.Flatten(), torch.nn.Linear(192, 10))",
    "2048": "16",
    "AdamW": "SGD",
    "(dataset, 256,": "(dataset, 16,",
    "(dataset, 1024,": "(dataset, 64,",
    '"ROWS", "200000"': '"ROWS", "20000"',
    '"TEXTS", "200000"': '"TEXTS", "4000"',
}
"""What a rehearsal on a CPU changes in any script."""

CHANGED = {
    "arrays": [
        (
            "self.table = table",
            'self.inputs, self.labels = np.ascontiguousarray(table[FEATURES]), table["label"].to_numpy()',
        ),
        ("len(self.table)", "len(self.labels)"),
        ("row = self.table.iloc[index]", "row = self.inputs[index]"),
        ("row[FEATURES].to_numpy(dtype=np.float32)", "row"),
        ('row["label"]', "self.labels[index]"),
    ],
    "once": [
        ("texts, labels, tokenizer\n", "texts, labels, self.tokenized(tokenizer, texts)\n"),
        ("def __getitem__(self, index):", "def tokenized(self, tokenizer, texts):"),
        ("made = self.tokenizer(", "made = tokenizer("),
        ("self.texts[index]", "texts"),
        (
            'return made["input_ids"][0], self.labels[index]',
            'return made["input_ids"]\n\n    def __getitem__(self, index):\n'
            "        return self.tokenizer[index], self.labels[index]",
        ),
    ],
}
"""What is typed in: text of the script, and what takes its place."""


def images_changed(words):
    """The same for `train.py`, with changes of images as `loops.py` has them."""
    folder = "ImageFolder(FOLDER, transforms.Compose([*augment, normalize]))"
    changes = [("import ImageFolder", "import ImageFolder\nfrom loops import jpegs_of"), (folder, f"jpegs_of({words})")]
    if "uint8" in words:
        values = (f"torch.tensor({each}, device=device)[:, None, None]" for each in (MEAN, STD))
        made, sent = "    optimizer = ", "labels.to(device, non_blocking=True)\n"
        floats = f"{' ' * 12}images = images.float().div_(255).sub_(mean).div_(std)\n"
        changes += [(made, f"    mean, std = {', '.join(values)}\n{made}"), (sent, sent + floats)]
    return changes


def words_of(job, epochs, workers, small):
    """Arguments of the script."""
    if job not in PHOTOS:
        return [str(epochs)]
    return [
        str(epochs),
        "--num-workers",
        str(workers),
        *(["--batch-size", "16"] if small else ["--batch-size", "256", "--bf16"]),
    ]


def typed_in(source, changes):
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in the script"
        source = source.replace(old, new)
    return source


def run(script, words, out, limit_s, prefix=(), until=None):
    """(Rates of epochs, what was said on stderr). Interrupted, as by Ctrl-C, after the limit, or `MORE_S` after
    ``until`` was said, if anything was given."""
    command, begun = [*prefix, sys.executable, str(script), *words], time.monotonic()
    said = out.with_suffix(".err")
    with out.with_suffix(".out").open("w") as printed, said.open("w") as errors:
        child = subprocess.Popen(command, stdout=printed, stderr=errors)
        while child.poll() is None and time.monotonic() - begun < limit_s:
            time.sleep(0.5)
            if until is not None and until in said.read_text():
                until, limit_s = None, min(limit_s, time.monotonic() - begun + MORE_S)
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            child.wait(30)
    rates = [float(rate.replace(",", "")) for rate in EPOCH.findall(out.with_suffix(".out").read_text())]
    text = said.read_text()
    print(f"{out.stem}: {' '.join(f'{rate:,.0f}' for rate in rates)}", flush=True)
    if not rates:
        raise SystemExit(text[-3000:])
    return rates, text


def advised(account, job):
    """{changes: the gain predicted of them together}. Empty: none were advised."""
    names = [each["name"] for each in account.get("changes", ())]
    for each in account.get("changes", ()):
        print(f"{each['name']}: {each['cheaper']['value']:.2f} times less CPU; {each['values']}", flush=True)
    if not names or account.get("changes_gain") is None:
        print(f"no changes were advised: {account.get('changes_reason')}", flush=True)
        return {}
    words = [CHANGES.get(name, f"without {name}") for name in names] if job in PHOTOS else [USUAL[job]]
    return {
        ":".join(word for word in dict.fromkeys([*CHANGES.values(), *words]) if word in words): account["changes_gain"]
    }


def prepare(job, small):
    """The script's text, and the environment that it reads."""
    source = (HERE / SCRIPTS[job]).read_text()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    if job in PHOTOS:
        num_photos, num_files, side = PHOTOS[job]
        num_photos, num_files = (16, 256) if small else (num_photos, num_files)
        folder = Path(f"/tmp/loadtune-exec-{side}")
        make_jpegs(folder, num_photos, num_files, side)
        os.environ |= {JPEGS: str(folder), SMALL: "", "PHOTOS": str(folder / "all"), "IMAGES": str(num_files)}
        source = source.replace("resnet50", "resnet18") if job == "large" and not small else source
    if small:
        os.environ["OMP_NUM_THREADS"] = "1"
        for old, new in SMALL_TEXT.items():
            source = source.replace(old, new)
    return source


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=SCRIPTS)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "changes-exec")))
    parser.add_argument("--epochs", type=int, help="under exec")
    parser.add_argument("--workers", type=int, default=4, help="that the script has")
    parser.add_argument("--plain-epochs", type=int, default=3, help="of each of the others")
    parser.add_argument("--changes", nargs="*", default=[], help="beside those that exec advises")
    parser.add_argument("--within-s", type=float, default=300.0, help="all of it")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    begun, job, out = time.monotonic(), given.job, given.out
    out.mkdir(parents=True, exist_ok=True)
    source = prepare(job, given.small).replace("num_workers=4", f"num_workers={given.workers}")
    script = out / f"{job}.py"
    script.write_text(source)
    prefix = [sys.executable, "-m", "loadtune", "exec", "--out", str(out), "--"]
    words = words_of(job, given.epochs or EPOCHS[job], given.workers, given.small)
    tuned, said = run(script, words, out / f"{job}-exec", 0.65 * given.within_s, prefix, ADVISED)
    (out / "inflight.json").replace(out / f"{job}-inflight.json")
    account = json.loads((out / f"{job}-inflight.json").read_text())["loaders"][0]
    workers = account["kept_workers"] or account["own_workers"]
    last = max((each["epoch"] for each in account["switches"]), default=0)
    print(*(line for line in said.splitlines() if line.startswith("loadtune:")), sep="\n", flush=True)
    predicted = advised(account, job)
    ways = list(dict.fromkeys(["", *predicted, USUAL[job], *given.changes]))
    rates = dict[str, float]()
    for way in ways:
        left_s = given.within_s - (time.monotonic() - begun)
        if left_s > 10 or not way:
            changes = [] if not way else CHANGED.get(way) or images_changed(way.split(":"))
            changed = out / f"{job}-{way.replace(':', '-') or 'plain'}.py"
            kept = [] if job in PHOTOS else [(f"num_workers={given.workers}", f"num_workers={workers}")]
            changed.write_text(typed_in(source, [*kept, *changes]))
            words = words_of(job, given.plain_epochs, workers, given.small)
            seen, _ = run(changed, words, changed.with_suffix(""), max(10.0, left_s))
            rates[way] = statistics.fmean(seen[1:] or seen)
    lines = [
        f"{job}: {given.workers} → {workers} workers; samples/s of epochs with these under exec: "
        f"{' '.join(f'{rate:,.0f}' for rate in tuned[last + 1 :])}",
        "| changes | samples/s | true gain | predicted | predicted ÷ true | within 15% |",
        "|---|---|---|---|---|---|",
    ]
    for way, rate in rates.items():
        gain, told = rate / rates[""], predicted.get(way)
        ratio = told and told / gain
        judged = f"{told:.2f} | {ratio:.2f} | {'yes' if abs(ratio - 1) <= ENOUGH else 'no'}" if told else "– | – | –"
        lines.append(f"| {way or 'none'} | {rate:,.0f} | {gain:.2f} | {judged} |")
    (out / f"{job}.md").write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
