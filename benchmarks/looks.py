"""How often looks at the steps of equal settings find a difference, and how soon they find a true one.

    python benchmarks/looks.py [--runs 2000]
    python benchmarks/looks.py --record JOB ...

A run takes one recorded loop, cuts it at a random place into before and after, and looks at the part after as the tuner
in flight does; the seconds of its steps are divided by the true gain first. *Before*: a look every 8 steps, two
standard errors, as it was until 2026-11-27. *Now*: `records.statistics`. *A-B-A*: the same, and back to the
settings before for as many blocks as the look had that told. ``--record`` adds loops of this machine to
``measured/steps-JOB.json``: alone, and beside a process that computes all the time, or now and then.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadtune.decide.final import LOOKS as ROUNDS
from loadtune.decide.final import Verdict
from loadtune.records import statistics as judging
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import Measurement, Window
from loadtune.records.result import Attempt
from loadtune.records.statistics import LOOKS, bracket, ratio

FOLDER = Path(__file__).parent / "measured"
UNIT_S = 1e-4
JOBS = {  # workers, samples a batch, seconds a sample, whether it computes, seconds a step, steps
    "sleeping": (2, 4, 0.006, False, 0.003, 2500),
    "computing": (2, 8, 0.001, True, 0.002, 2500),
    "rows": (2, 2048, 0.0, False, 0.0, 3500),
    "many": (8, 16, 0.006, False, 0.003, 2500),
}
BESIDE = {
    "nothing": "",
    "busy": "while True: pass",
    "bursts": "import random, time\nwhile True:\n until = time.perf_counter() + random.expovariate(20)\n"
    " while time.perf_counter() < until: pass\n time.sleep(random.expovariate(8))",
}
GAINS = (1.0, 1.1, 1.3, 2.0)
BEFORE = LOOKS[0]
"""Blocks before a change: the tuner acts as soon as it may look."""
SWEEP = [
    (4, (4, 8, 16), 0.25, 0.015),
    (8, (4, 8, 16), 0.25, 0.015),
    (16, (4, 8, 16), 0.25, 0.015),
    (4, (4, 8, 16, 32), 0.25, 0.015),
    (4, (4, 8, 16), 0.25, 0.0),
    (4, (4, 8, 16), 0.05, 0.015),
    (4, (4, 8, 16), 0.1, 0.015),
    (4, (4, 8, 16), 0.5, 0.015),
    (8, (4, 8, 16), 0.5, 0.015),
]
"""Blocks before, looks, seconds of a block and drift, for the second table."""


def block_size(step_s, num_workers):
    """Steps of a block, as `loadtune.decide.steps` makes them: whole turns of all workers that last long enough."""
    turn = max(1, num_workers)
    return turn * max(1, math.ceil(judging.BLOCK_S / (turn * max(1e-6, step_s)) - 1e-6))


def blocks(steps_s, size):
    return [math.fsum(steps_s[at : at + size]) / size for at in range(0, len(steps_s) - size + 1, size)]


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps of one recorded loop."""

    job: str
    beside: str
    num_workers: int
    is_later: bool
    """Recorded after looks, block length and drift had been chosen on the others."""
    steps_s: list[float]

    @property
    def skip(self) -> int:
        """Steps after a change that are left out: batches that were queued before."""
        return max(3, 2 * self.num_workers)

    def last_begin(self, num_blocks: int) -> int:
        """Step from which on a run of so many blocks could not go to its end."""
        size = block_size(statistics.fmean(self.steps_s), self.num_workers)
        return max(1, len(self.steps_s) - num_blocks * size - 2 * self.skip)


@dataclass(frozen=True, slots=True)
class Told:
    """What one run ended with."""

    outcome: str
    """``gain``, ``loss`` or ``nothing``."""
    num_steps: int
    seconds: float
    """Since the change."""
    holds: bool | None = None
    """Whether the interval holds the true ratio. None: there is none."""


def loops_of(folder: Path = FOLDER) -> Iterator[Loop]:
    for path in sorted(folder.glob("steps-*.json")):
        kept = json.loads(path.read_text())
        for loop in kept["loops"]:
            steps_s = [each * kept["unit_s"] for each in loop["steps"]]
            yield Loop(kept["job"], loop["beside"], kept["num_workers"], loop["is_later"], steps_s)


# As it was


def reading(steps_s: Sequence[float], num_workers: int) -> tuple[float, float]:
    """(Mean, standard error) from blocks as long as a turn of all workers, of eight steps at least."""
    each = blocks(steps_s, max(8, num_workers))
    error_s = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.inf
    return statistics.fmean(steps_s), error_s


def until(steps_s: Sequence[float], num_workers: int) -> Iterator[int]:
    """Numbers of steps at which it looked."""
    for num in range(16, len(steps_s) + 1, 8):
        mean_s = statistics.fmean(steps_s[:num])
        if num >= min(400, max(16, 3 * num_workers, math.ceil(0.3 / mean_s))):
            yield num


def every_eight_steps(loop: Loop, at: int, gain: float) -> Told:
    """`inflight.measure.has_gained`, as it was."""
    num, workers = next(until(loop.steps_s[at : at + 500], loop.num_workers)), loop.num_workers
    old_s, old_error_s = reading(loop.steps_s[at : at + num], workers)
    after = [each / gain for each in loop.steps_s[at + num + loop.skip :][:500]]
    for num in until(after, workers):
        new_s, new_error_s = reading(after[:num], workers)
        found = 1 - new_s / old_s
        noise = 2 * math.hypot(*(each for each in (new_error_s, old_error_s) if each < math.inf)) / old_s
        if found >= max(0.02, min(noise, 0.5)):
            return Told("gain", num, math.fsum(after[:num]))
        if not (found > -noise and num < 4 * max(16, 3 * workers)):
            return Told("loss" if found <= -max(0.02, noise) else "nothing", num, math.fsum(after[:num]))
    return Told("nothing", len(after), math.fsum(after))


# As it is


def planned(
    loop: Loop,
    at: int,
    gain: float,
    *,
    goes_back: bool = False,
    sizes: Sequence[int] = LOOKS,
    num_before: int = BEFORE,
) -> Told:
    """Looks at doubling numbers of blocks. ``goes_back``: what is told is told by A-B-A."""
    before_s = statistics.fmean(loop.steps_s[at : at + 100])
    size, new_size = block_size(before_s, loop.num_workers), block_size(before_s / gain, loop.num_workers)
    begin = at + size * num_before + loop.skip
    old = blocks(loop.steps_s[at : at + size * num_before], size)
    told = "nothing"
    for num in sizes:
        new = [each / gain for each in blocks(loop.steps_s[begin : begin + num * new_size], new_size)]
        found, end = ratio(old, new, num_looks=len(sizes)), begin + num * new_size
        if goes_back and found.holds(1.0) is False:
            last = blocks(loop.steps_s[end + loop.skip :][: num * size], size)
            found = bracket(found, ratio(last, new, num_looks=len(sizes)))
        told = "nothing" if found.holds(1.0) else "gain" if found.value < 1 else "loss"
        if told != "nothing":
            break
    return Told(told, num * new_size, num * new_size * statistics.fmean(new), found.holds(1 / gain))


Rule = Callable[[Loop, int, float], Told]
RULES: dict[str, Rule] = {
    "before": every_eight_steps,
    "now": planned,
    "A-B-A": partial(planned, goes_back=True),
}


def runs_of(rule: Rule, loops: Sequence[Loop], num_runs: int, gain: float) -> list[tuple[Loop, Told]]:
    chance, found = random.Random(1), list[tuple[Loop, Told]]()
    for number in range(num_runs):
        loop = loops[number % len(loops)]
        found.append((loop, rule(loop, chance.randrange(loop.last_begin(BEFORE + 2 * LOOKS[-1])), gain)))
    return found


def table(loops: Sequence[Loop], num_runs: int) -> Iterator[str]:
    """One line a rule and true gain; of equal settings one a neighbour and job as well."""
    yield "| rule | true gain | loops | gain told | loss told | interval holds it | steps, median | s, median |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, rule in RULES.items():
        for gain in GAINS:
            runs = runs_of(rule, loops, num_runs, gain)
            yield f"| {name} | {gain} | all | {row_of([told for _, told in runs])} |"
            for later, kind in ((False, "chosen on"), (True, "recorded later")):
                some = [(loop, told) for loop, told in runs if loop.is_later is later]
                named = kind + (by_loop(some) if gain == 1.0 else "")
                yield f"| {name} | {gain} | {named} | {row_of([told for _, told in some])} |"
            for kind in (*BESIDE, *JOBS) if gain == 1.0 else ():
                some = [told for loop, told in runs if kind in (loop.beside, loop.job)]
                yield f"| {name} | {gain} | {kind} | {row_of(some)} |"


def by_loop(runs: Sequence[tuple[Loop, Told]]) -> str:
    """95% interval of the share of differences told, by drawing loops anew: runs of one loop are not independent."""
    shares: dict[int, list[bool]] = {}
    for loop, told in runs:
        shares.setdefault(id(loop), []).append(told.outcome != "nothing")
    means, chance = [statistics.fmean(each) for each in shares.values()], random.Random(1)
    drawn = sorted(statistics.fmean(chance.choices(means, k=len(means))) for _ in range(2000))
    return f", {len(means)} loops: {100 * drawn[50]:.1f} to {100 * drawn[1949]:.1f}% told"


def sweep(loops: Sequence[Loop], num_runs: int) -> Iterator[str]:
    """What other blocks, and other drifts, would tell of equal settings and of a gain of 1.1."""
    yield "| before | looks | block, s | drift | of equal | recorded later | steady loops | gain of 1.1 | s, median |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for num_before, sizes, judging.BLOCK_S, judging.DRIFT in SWEEP:
        same, faster = (
            runs_of(partial(planned, sizes=sizes, num_before=num_before), loops, num_runs, gain) for gain in (1.0, 1.1)
        )
        later = [told for loop, told in same if loop.is_later]
        steady = [told for loop, told in same if loop.job == "sleeping" and loop.beside == "nothing"]
        shares = [1 - told_share(each, "nothing") for each in ([told for _, told in same], later, steady)]
        gains = [told for _, told in faster]
        shares.append(told_share(gains, "gain"))
        median_s = statistics.median(each.seconds for each in gains if each.outcome == "gain")
        cells = " | ".join(f"{100 * share:.1f}%" for share in shares)
        setting = f"{num_before} | {', '.join(map(str, sizes))} | {judging.BLOCK_S} | {judging.DRIFT}"
        yield f"| {setting} | {cells} | {median_s:.1f} |"


def told_share(runs: Sequence[Told], outcome: str) -> float:
    return statistics.fmean(each.outcome == outcome for each in runs)


def row_of(runs: Sequence[Told]) -> str:
    shares = [told_share(runs, what) for what in ("gain", "loss")]
    held = [each.holds for each in runs if each.holds is not None]
    gains = [each for each in runs if each.outcome == "gain"]
    cells = [f"{100 * share:.1f}%" for share in shares] + [f"{100 * statistics.fmean(held):.1f}%" if held else "–"]
    cells.append(f"{statistics.median(each.num_steps for each in gains):.0f}" if gains else "–")
    cells.append(f"{statistics.median(each.seconds for each in gains):.1f}" if gains else "–")
    return " | ".join(cells)


# Rounds of a final


def finals(num_runs: int) -> Iterator[str]:
    """How often equal settings are called different in a final, whose segments differ as repeated ones of a table."""
    yield "| table | pairs | median difference | of two: called different | of four: any from the first |"
    yield "|---|---|---|---|---|"
    for path in sorted(FOLDER.glob("*.json")):
        rows = [] if path.stem.startswith("steps-") else json.loads(path.read_bytes())["rows"]
        pairs = [[_log_rate(run) for run in row["runs"]] for row in rows if len(row["runs"]) == 2]
        if not pairs:
            continue
        off = [sign * (a - b) / math.sqrt(2) for a, b in pairs for sign in (1, -1)]
        told = [100 * sum(_is_told(off, num, random.Random(at)) for at in range(num_runs)) / num_runs for num in (2, 4)]
        half = statistics.median(abs(math.expm1(a - b)) for a, b in pairs)
        yield f"| {path.stem} | {len(pairs)} | {100 * half:.1f}% | {told[0]:.1f}% | {told[1]:.1f}% |"


def _log_rate(run: dict[str, Any]) -> float:
    return math.log(sum(w["num_samples"] for w in run["windows"]) / sum(w["seconds"] for w in run["windows"]))


def _is_told(off: Sequence[float], num_configs: int, chance: random.Random) -> bool:
    """Whether one of equal configurations is called different from the first at one of the looks."""
    configs = [
        TrialConfig(loader=LoaderConfig(batch_size=8 + n, num_workers=0), recipe=Recipe()) for n in range(num_configs)
    ]
    ran = [_segment(config, math.exp(chance.choice(off))) for _ in range(ROUNDS[-1]) for config in configs]
    for look in ROUNDS:
        verdict = Verdict(ran=ran[: look * num_configs])
        first, *others = verdict.finalists
        if any(verdict.ratio(each, first, num_configs - 1).holds(1.0) is False for each in others):
            return True
    return False


def _segment(config: TrialConfig, seconds: float) -> Attempt:
    window = Window(start_s=0.0, seconds=seconds, num_steps=1, num_samples=1)
    return Attempt(config=config, measurement=Measurement(windows=(window,), first_batch_s=0.0, seconds=seconds))


# Recording


def recorded(job, beside):
    """One loop of a small model over a DataLoader."""
    import torch
    from inflight_jobs import Samples
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    workers, batch, sample_s, computes, step_s, steps = JOBS[job]
    rows = TensorDataset(torch.randn(batch * steps, 4), torch.arange(batch * steps))
    dataset = Samples(batch * steps, sample_s, computes) if sample_s else rows
    model = torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    neighbour = subprocess.Popen([sys.executable, "-c", BESIDE[beside]]) if BESIDE[beside] else None
    ends, batches = [], iter(DataLoader(dataset, batch, num_workers=workers))
    try:
        for vectors, _ in batches:
            ends.append(time.perf_counter())
            model(vectors).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(step_s)
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
    told = ends[max(3, 2 * workers) :]
    return {"beside": beside, "is_later": True, "steps": [round((b - a) / UNIT_S) for a, b in pairwise(told)]}


def record(jobs):
    import torch

    for job in jobs:
        path = FOLDER / f"steps-{job}.json"
        known = json.loads(path.read_text())["loops"] if path.exists() else []
        told = {
            "job": job,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": f"{platform.system()}, {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}",
            "num_workers": JOBS[job][0],
            "unit_s": UNIT_S,
            "loops": known + [recorded(job, beside) for beside in BESIDE],
        }
        path.write_text(json.dumps(told, separators=(",", ":")) + "\n")
        print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--record", nargs="+", choices=JOBS, metavar="JOB", default=())
    given = parser.parse_args()
    if given.record:
        record(given.record)
        return
    loops = list(loops_of())
    print(f"{len(loops)} loops, {sum(len(loop.steps_s) for loop in loops):,} steps, {given.runs} runs a line\n")
    for line in (*table(loops, given.runs), "", *sweep(loops, given.runs), "", *finals(given.runs)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
