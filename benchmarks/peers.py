"""What other tools leave a user with, beside loadtune: samples/s by one neutral loop, and seconds of tuning.

    python benchmarks/peers.py [--parts tune,time] [--tools A,B] [--rounds N] [--within-s S] [--keep FOLDER]
                               [--from JSON] [--pypi-loadtune FOLDER] [--note FILE] [--quick]

ResNet-50 on FakeData, 3×224×224, float32 by ToTensor alone, SGD with momentum: the README's command. `tune` asks each
tool, `time` trains by each answer, in turn, in fresh processes that share no line with loadtune's own measuring
(`peers_loop.py`). Parts may be run in several calls on one machine: --keep writes what is known, --from takes it up.
PyPI's `loadtune` 0.3.0, an unrelated tool, comes as a wheel or installed in a folder of its own. --quick rehearses with
a tiny model that a CPU trains; its figures say nothing about anything else, and a tool that gives no answer ends it
with exit code 1.
"""

import argparse
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import peers_note
from memory_grid import FAKE, SMOKE_FAKE
from memory_orders import first_line
from memory_pool import end_all
from memory_probe import describe_host, make_slots, names, without_paths
from peers_records import Answer, Results, from_json, to_json
from peers_tools import CHANGED, OURS, QUICK_TOOLS, TOOLS, Setup, time_answer

from loadtune.errors import DeviceError
from loadtune.host import read_host

PARTS = ("tune", "time")
# Imports, the model and its first steps in a fresh process, and samples/s at the least, for what still fits in a call.
START_S, SLOW_PER_S = 20.0, 2000.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

ABOUT = (
    "Every answer is timed by the same plain PyTorch loop in fresh processes, in turn: samples ÷ wall seconds, the "
    "model warm before the loader begins, the device waited for at the ends alone. Equal answers are timed once. What "
    "a tool does not decide stays as PyTorch has it. Tuning seconds are those of the tool's process, imports and all; "
    "in brackets its search alone. The finders look for the largest batch that fits, not for the fastest. Accelerate's "
    "tries random batches on the device, with no loader; from its own default of 128 it would answer 128 at once. "
    "Lightning's workers are those that its warning about few of them names."
)

Job = tuple[str, float, Callable[[], None]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names, default=PARTS, help="of tune, time")
    parser.add_argument("--tools", type=names, help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--rounds", type=int, default=2, help="timings of each answer, those of --from among them")
    parser.add_argument("--timed-s", type=float, help="of one timing at the least: 20, with --quick 1")
    parser.add_argument("--max-timed-s", type=float, help="of one timing at the most: 60, with --quick 2")
    parser.add_argument("--limit-s", type=float, default=360.0, help="for one tool, or one timing")
    parser.add_argument("--within-s", type=float, help="begin no job that would probably end later than this")
    parser.add_argument("--from", dest="earlier", type=Path, action="append", default=[], help="kept by another call")
    parser.add_argument("--keep", type=Path, help="folder for peers.json and logs")
    parser.add_argument("--pypi-loadtune", type=Path, metavar="FOLDER", help="wheels, or a folder to import from")
    parser.add_argument("--note", type=Path, help="file to keep the note in")
    parser.add_argument("--quick", action="store_true", help="a tiny model on a CPU")
    given = parser.parse_args()
    given.tools = given.tools or (QUICK_TOOLS if given.quick else tuple(TOOLS))
    given.timed_s = given.timed_s or (1.0 if given.quick else 20.0)
    given.max_timed_s = given.max_timed_s or (2.0 if given.quick else 60.0)
    for option, found, known in (("--parts", given.parts, PARTS), ("--tools", given.tools, tuple(TOOLS))):
        if unknown := [name for name in found if name not in known]:
            parser.error(f"{option}: {unknown[0]!r} is none of {', '.join(known)}")
    return given


def tuning_jobs(setup: Setup, results: Results, tools: tuple[str, ...]) -> Iterator[Job]:
    """Tools that were not asked yet, the longest first."""
    for tool in sorted(tools, key=lambda tool: TOOLS[tool].estimate_s, reverse=True):
        if tool not in results.tuned and tool != CHANGED:

            def run(tool: str = tool) -> None:
                found = results.tuned[tool] = TOOLS[tool].ask(setup)
                if found.changed is not None:
                    results.tuned[CHANGED] = found.changed

            yield f"tune: {tool}", 5.0 if setup.quick else TOOLS[tool].estimate_s, run


def timing_jobs(setup: Setup, results: Results, tools: tuple[str, ...], rounds: int) -> Iterator[Job]:
    """Each answer once a round, loadtune's first: where time ends early, the others have something to stand beside.

    Every other round goes backwards, so that a machine that drifts favours nobody.
    """
    answers = {}
    wanted = (*tools, CHANGED) if OURS in tools else tools
    able = [tool for tool in TOOLS if tool in wanted and tool in results.tuned]
    for tool in sorted(able, key=lambda tool: (tool != OURS, tool != CHANGED)):
        answer = results.tuned[tool].answer
        if answer is not None:
            answers.setdefault(answer.key, (tool, answer))
    for number in range(rounds):
        for key, (tool, answer) in list(answers.items())[:: -1 if number % 2 else 1]:
            timings = results.timings.setdefault(key, [])
            if len(timings) <= number:

                def run(timings: list = timings, answer: Answer = answer) -> None:
                    timings.append(time_answer(setup, answer))

                yield f"time, round {number + 1}: {tool}", timing_s(setup, answer), run


def timing_s(setup: Setup, answer: Answer) -> float:
    """What one timing will take at the most, roughly: a queue goes by, and three are timed."""
    queue_s = answer.num_prefetched * answer.batch_size / SLOW_PER_S
    return (
        START_S
        + min(max(queue_s, setup.timed_s / 4), setup.max_s / 2)
        + min(max(3 * queue_s, setup.timed_s), setup.max_s)
    )


def run_jobs(jobs: Iterator[Job], results: Results, until: float | None, save: Callable[[], None]) -> None:
    started = time.monotonic()
    for name, estimate_s, run in jobs:
        begun = time.monotonic()
        if until is not None and begun + estimate_s > until:
            results.failed[name] = "not begun for lack of time"
            continue
        try:
            run()
        except Exception as error:
            traceback.print_exc()
            results.failed[name] = first_line(error)
        save()
        now = time.monotonic()
        print(f"{now - started:6.0f} s  {name}: {now - begun:.1f} s", flush=True)


def note(results: Results, quick: bool) -> str:
    subject = "a tiny model, a rehearsal" if quick else "ResNet-50 on FakeData"
    text = [
        f"# Other tools beside loadtune on {results.host['GPU']}, {datetime.now(UTC):%Y-%m-%d}: {subject}",
        ". ".join(f"{name}: {fact}" for name, fact in results.host.items()) + ".",
        "Commands, on one machine: " + ", then ".join(f"`{command}`" for command in results.commands) + ".",
        ABOUT,
        peers_note.tables(results),
    ]
    return "\n\n".join(text) + "\n"


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit: processes end, what is known is kept
    until = None if given.within_s is None else time.monotonic() + given.within_s
    keep = given.keep or Path(tempfile.mkdtemp(prefix="peers-"))
    keep.mkdir(parents=True, exist_ok=True)
    host = read_host()
    command = shlex.join(["python", "benchmarks/peers.py", *without_paths(sys.argv[1:])])
    results = Results(commands=[command], boot=BOOT_ID.read_text().strip() if BOOT_ID.exists() else None)
    try:
        (slot,) = make_slots(("cpu",) if given.quick else None, host, keep / "logs")
        for path in given.earlier:
            results.absorb(from_json(path.read_bytes()))
    except (DeviceError, OSError, ValueError) as error:
        sys.exit(f"{error}")
    results.host = describe_host(host, [slot])
    setup = Setup(
        slot=slot,
        cell=SMOKE_FAKE if given.quick else FAKE,
        quick=given.quick,
        num_cores=host.num_usable_cores,
        limit_s=given.limit_s,
        pypi=given.pypi_loadtune,
        timed_s=given.timed_s,
        max_s=given.max_timed_s,
        keep=keep,
    )

    def save() -> None:
        (keep / "peers.json").write_bytes(to_json(results))
        if given.note is not None:
            given.note.write_text(note(results, given.quick))

    try:
        if "tune" in given.parts:
            run_jobs(tuning_jobs(setup, results, given.tools), results, until, save)
        if "time" in given.parts:
            run_jobs(timing_jobs(setup, results, given.tools, given.rounds), results, until, save)
    finally:
        save()
        end_all()
    print(peers_note.tables(results))
    return int(given.quick and any(tuned.error for tuned in results.tuned.values()))


if __name__ == "__main__":
    sys.exit(main())
