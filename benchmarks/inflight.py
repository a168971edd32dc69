"""Seconds of a training without `loadtune exec` → with it, for the jobs of `inflight_jobs.py`: a Markdown table.

    python benchmarks/inflight.py [JOB ...] [--steps 1200] [--sample 0.006] [--step 0.010] [--out FILE.md]

Each job runs once plain and once tuned, each in its own process. ``same`` says whether losses, samples, their order
and the random state at the end are equal. ``hook`` is the time of the tuner a step, in µs, with switches. Seconds are
those of the job without imports.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from inflight_jobs import JOBS

HEAD = ("job", "seconds without → with", "workers", "same", "hook µs", "said")


def run(command, prefix=()):
    done = subprocess.run([*prefix, *command], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1:]
    return done.stdout.split()[-3:], [line for line in done.stderr.splitlines() if line.startswith("loadtune: ")]


def row(job, sizes):
    command = [sys.executable, str(Path(__file__).with_name("inflight_jobs.py")), job, *sizes]
    plain, trouble = run(command)
    if plain is None:
        return job, f"not run: {trouble}"
    with tempfile.TemporaryDirectory() as folder:
        tuned, said = run(command, (sys.executable, "-m", "loadtune", "exec", "--out", folder, "--"))
        if tuned is None:
            return job, f"{plain[2]} → failed: {said}"
        loaders = json.loads((Path(folder) / "inflight.json").read_text())["loaders"]
    workers = "; ".join(" → ".join(str(each) for each in numbers(loader)) for loader in loaders)
    hook = "; ".join(f"{each['hook_s'] / max(1, each['num_batches']) * 1e6:.0f}" for each in loaders)
    same = "yes" if plain[:2] == tuned[:2] else "NO"
    return job, f"{float(plain[2]):.0f} → {float(tuned[2]):.0f}", workers, same, hook, (said or [""])[0][10:]


def numbers(loader):
    """Workers one after another, each once."""
    seen = [loader["own_workers"]]
    for switch in loader["switches"]:
        if switch["num_workers"] != seen[-1]:
            seen.append(switch["num_workers"])
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", default=[*JOBS], metavar="JOB", choices=[*JOBS, []])
    parser.add_argument("--steps", default="1200")
    parser.add_argument("--sample", default="0.006")
    parser.add_argument("--step", default="0.010")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = ["--steps", given.steps, "--sample", given.sample, "--step", given.step]
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    print(*lines, sep="\n", flush=True)
    for job in given.jobs:
        lines.append("| " + " | ".join(row(job, sizes)) + " |")
        print(lines[-1], flush=True)
    if given.out is not None:
        given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
