"""Run the README's command as it stands, time it, and keep what it printed as a dated note.

    python benchmarks/readme_run.py [--note FILE] [--keep FOLDER] [--repeats N] [-- OPTIONS]
    python benchmarks/readme_run.py --readme FOLDER

Prints a table, one line a repeat. OPTIONS of `loadtune run` name another job than the README's first command, such as
its own job. The second line writes the answer that a folder keeps into the README, and runs nothing. On an H200 the
goal of the first command is an answer within 150 s and a confirmed winner of at least 3,300 samples/s with float32
inputs (a known tool's own answer there was 1,346; searched by hand: 3,650 to 4,300).
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from loadtune import TuningResult, load_result
from loadtune.report.sentences import settings_text
from loadtune.report.terminal import terminal_answer
from loadtune.store import write_result
from loadtune.units import rate_text

README = Path(__file__).resolve().parents[1] / "README.md"
COMMAND = ["run", "--dataset", "FakeData", "--model", "resnet50"]
GOAL_S, GOAL_PER_S = 150.0, 3300.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command: what it printed, what it kept, how long it took from the shell's view."""

    seconds: float
    output: str
    result: TuningResult


def run_command(command: Sequence[str] = COMMAND, limit_s: float | None = None, **environment: str) -> Run:
    """Raises what subprocess.run raises, with what was printed: it failed, or took longer than the limit.

    Ctrl-C ends the run as it would a user's, and shows what it had printed by then.
    """
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryFile("w+") as printed:
        started = time.perf_counter()
        try:
            subprocess.run(
                [sys.executable, "-m", "loadtune", *command, "--out", out],
                stdout=printed,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=limit_s,
                env=os.environ | {"COLUMNS": "80", "PYTHONUNBUFFERED": "1"} | environment,
            )
        except subprocess.SubprocessError as error:
            error.output = _text(printed)
            raise
        except KeyboardInterrupt:
            print(_text(printed))
            raise
        seconds = time.perf_counter() - started
        # The folder is gone once this returns; the note shows what a user would see.
        return Run(seconds, _text(printed).replace(out, "loadtune-results"), load_result(out))


def _text(printed: IO[str]) -> str:
    printed.seek(0)
    return printed.read()


def row(number: int, run: Run) -> str:
    best = run.result.best
    if best is None:
        return f"| {number} | {run.seconds:.0f} | nothing confirmed | | |"
    half_width = best.samples_per_s * (best.half_width_fraction or 0.0)
    speedup = "–" if best.speedup is None else f"{best.speedup.value:.1f}×"
    rate = f"{rate_text(best.samples_per_s)} ± {rate_text(half_width)}"
    return f"| {number} | {run.seconds:.0f} | {rate} | {speedup} | {settings_text(best.config)} |"


def show_in_readme(folder: Path) -> None:
    """In the block that the marker precedes."""
    result = load_result(folder)
    when = datetime.fromisoformat(result.created).astimezone(UTC)
    report = Path("loadtune-results") / result.config.workload.label / f"{when:%Y-%m-%dT%H-%M-%SZ}" / "report.html"
    before, mark, after = README.read_text().partition("<!-- output -->")
    _, _, rest = after.split("```", 2)
    answer = "\n".join(terminal_answer(result, report, with_notes=False))
    README.write_text(f"{before}{mark}\n\n```\n{answer}\n```{rest}")


def note(runs: list[Run], command: Sequence[str]) -> str:
    result = runs[-1].result
    head = [
        f"# The README's run on {result.device.name}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"Host: {result.host.cpu_name}, {result.host.num_usable_cores} cores, {result.host.os}. "
        f"Python {result.host.python}, torch {result.host.torch or '–'}, CUDA {result.host.cuda or '–'}, "
        f"driver {result.host.driver or '–'}, loadtune {result.loadtune_version}.",
        "",
        "Command: `python benchmarks/readme_run.py`, which runs `loadtune " + shlex.join(command) + "`.",
        "",
        "| run | seconds | confirmed samples/s | speed-up | configuration |",
        "|---|---|---|---|---|",
        *(row(number, run) for number, run in enumerate(runs, 1)),
        "",
    ]
    for number, run in enumerate(runs, 1):
        head += [f"## Output of run {number}", "", "```", run.output.rstrip(), "```", ""]
    return "\n".join(head)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--note", type=Path, help="file to keep the note in")
    parser.add_argument("--keep", type=Path, help="folder to keep result.json in; of several repeats one below it each")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--readme", type=Path, help="folder of the result whose answer the README shows")
    parser.add_argument("options", nargs="*", help="of loadtune run, after --")
    arguments = parser.parse_args()
    if arguments.readme is not None:
        show_in_readme(arguments.readme)
        return 0
    command = ["run", *arguments.options] if arguments.options else COMMAND
    runs = []
    for number in range(1, arguments.repeats + 1):
        runs.append(run_command(command))
        if arguments.keep is not None:
            folder = arguments.keep if arguments.repeats == 1 else arguments.keep / f"{number}"
            folder.mkdir(parents=True, exist_ok=True)
            write_result(runs[-1].result, folder)
    text = note(runs, command)
    if arguments.note is not None:
        arguments.note.write_text(text)
    print(text.partition("## Output")[0])
    if runs[-1].result.device.kind != "cuda" or command != COMMAND:
        return 0
    met = [
        run.seconds <= GOAL_S and run.result.best is not None and run.result.best.samples_per_s >= GOAL_PER_S
        for run in runs
    ]
    print(f"{sum(met)} of {len(met)} runs within {GOAL_S:.0f} s and at {GOAL_PER_S:,.0f} samples/s or more")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
