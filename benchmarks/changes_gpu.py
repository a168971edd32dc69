"""Changes of the code on the JPEG job of `train.py`: what `loadtune run` finds and tells, beside loops written by hand.

    python benchmarks/changes_gpu.py [--out FOLDER] [--time-budget 240] [--seconds 12] [--rounds 2] [--within-s 560]

First `loadtune run` tunes the job from batch 128, 8 workers and float32. Then plain loops, with nothing of loadtune in
them, run in turns: the job as it is, with uint8 sent, the best that is known by hand (decoded by torchvision, augmented
as uint8 tensors, floats made on the GPU), the compute-only limit, and the answers of the run with their changes typed
in by hand. The table says of the latter what the run told ÷ what the loop reads. ``--small`` rehearses on a CPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import loops
from workloads import JPEGS, spec_of

BY_HAND = ("bf16:{}:{}:fused", "bf16:{}:{}:fused:uint8", "bf16:{}:{}:fused:tensor:uint8")
LIMIT = "bf16:{}:0:fused:uint8:resident"


def tuned(given, begun):
    """The folder of the run, or None where it has no answer; what it printed is in ``run.txt``."""
    os.environ |= {"PHOTOS": str(Path(os.environ[JPEGS]) / "all"), "IMAGES": str(256 if given.small else 100_000)}
    model = "workloads:small_cnn" if given.small else "train:make_model"
    job = ["--dataset", "train:make_dataset", "--model", model]
    batch_size, num_workers = ("16", "1") if given.small else ("128", "8")
    baseline = ["--batch-size", batch_size, "--num-workers", num_workers, "--amp", "fp32"]
    with tempfile.TemporaryDirectory() as folder, (given.out / "run.txt").open("w") as printed:
        command = [sys.executable, "-m", "loadtune", "run", *job, *baseline, "--out", folder]
        command += ["--time-budget", str(given.time_budget)]
        done = subprocess.run(command, stdout=printed, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "120"})
        print(f"loadtune run: exit code {done.returncode} after {time.monotonic() - begun:.0f} s", flush=True)
        for kept in Path(folder).rglob("result.json"):
            shutil.copy(kept, given.out / "result.json")
    return given.out if (given.out / "result.json").exists() else None


def tried(result):
    """Lines: each change that was tried, and each trial with one."""
    found = result.remedies
    kept = found.config.remedies if found and found.config else ()
    for each in found.tried if found else ():
        gains = [
            f"{name} {gain.value:.2f}" for name, gain in (("predicted", each.predicted), ("gained", each.gain)) if gain
        ]
        yield f"{each.name}: {', '.join([*gains, *filter(None, [each.reason])])}{', kept' if each.name in kept else ''}"
    for trial in result.trials:
        rate = f"{trial.measurement.samples_per_s:,.0f}/s" if trial.measurement else "failed"
        yield f"trial {trial.number}: {loops.setting_of(trial.config)} {rate}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "changes-gpu")))
    parser.add_argument("--time-budget", type=float, default=240.0, help="of loadtune run")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each loop")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=512, help="of the loops by hand")
    parser.add_argument("--workers", type=int, default=16, help="of the loops by hand")
    parser.add_argument("--within-s", type=float, default=560.0, help="all of it")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    begun = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    spec_of("jpeg-resnet50", small=given.small, folder=None)
    told = {}
    if (folder := tuned(given, begun)) is not None:
        from loadtune import load_result

        result = load_result(folder)
        print(*tried(result), sep="\n", flush=True)
        found = result.remedies.tried if result.remedies else ()
        (given.out / "code.txt").write_text("\n".join(f"# {each.name}\n{each.code}\n" for each in found))
        told = loops.told_by(folder)
    by_hand = [each.format(given.batch_size, given.workers) for each in (*BY_HAND, LIMIT)]
    left_s = given.within_s - (time.monotonic() - begun) - 2.5 * given.seconds
    settings = list(dict.fromkeys([*by_hand, *told]))
    rates = loops.measured("jpeg", settings, rounds=given.rounds, seconds=given.seconds, within_s=left_s)
    (given.out / "rates.json").write_text(json.dumps(rates, indent=1))
    lines = ["by hand: the first four; the others are answers of the run", *loops.table(rates, told)]
    (given.out / "table.md").write_text("\n".join(lines))
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
