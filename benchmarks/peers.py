"""What other tools leave a user with, beside loadtune: samples/s by one neutral loop, and seconds of tuning.

    python benchmarks/peers.py [--parts tune,time] [--tools A,B] [--rounds N] [--within-s S] [--keep FOLDER]
                               [--from JSON] [--note FILE] [--quick]

ResNet-50 on JPEG files of 500 pixels, augmented and normalized as ImageNet usually is, SGD with momentum. `tune` asks
each tool, `time` trains by each answer, in turn, in fresh processes that share no line with loadtune's own measuring
(`peers_child.py`). Parts may be run in several calls on one machine: --keep writes what is known, --from takes it up.
--quick rehearses with a tiny model that a CPU trains; its figures say nothing about anything else, and a tool that
gives no answer ends it with exit code 1.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cells import JPEG, SMOKE_FAKE
from peers_child import Answer, Timing
from peers_tools import CHANGED, OURS, TOOLS, Setup, Tuned, time_answer
from processes import (
    Job,
    Slot,
    add_kept,
    command,
    describe_host,
    keeping,
    markdown_row,
    markdown_table,
    names,
    run_jobs,
    with_kept,
)
from workloads import JPEGS, spec_of

from loadtune.errors import DeviceError
from loadtune.host.machine import read_host

PARTS = ("tune", "time")
START_S, SLOW_PER_S = 20.0, 2000.0
"""Imports, the model and its first steps in a fresh process, and samples/s at the least, for what fits in a call."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

ABOUT = (
    "Every answer is timed by the same plain PyTorch loop in fresh processes, in turn: samples ÷ wall seconds, the "
    "model warm before the loader begins, the device waited for at the ends alone. Equal answers are timed once. What "
    "a tool does not decide stays as PyTorch has it. Tuning seconds are those of the tool's process, imports and all; "
    "in brackets its search alone. The finders look for the largest batch that fits, not for the fastest. Accelerate's "
    "tries random batches on the device, with no loader. "
    "Lightning's workers are those that its warning about few of them names."
)


class Results(msgspec.Struct, kw_only=True):
    """Everything. Tools by name; timings by the answer's key, one a round."""

    host: dict[str, str] = {}
    boot: str | None = None
    """Which start of which machine. None: it does not say."""
    commands: list[str] = []
    tuned: dict[str, Tuned] = {}
    timings: dict[str, list[Timing]] = {}
    failed: dict[str, str] = {}
    """Jobs that were not begun, or ended in an exception of ours."""

    def absorb(self, earlier: "Results") -> None:
        """Go on from another call. Raises ValueError where that ran on another machine: nothing compares then."""
        if None not in (earlier.boot, self.boot) and earlier.boot != self.boot:
            raise ValueError("it was kept on another machine, or before this one was started anew")
        self.commands = earlier.commands + self.commands
        self.tuned = earlier.tuned | self.tuned
        self.timings = earlier.timings | self.timings

    def rates(self, tool: str) -> list[float]:
        """Samples/s of a tool's answer in each round that worked."""
        answer = self.tuned[tool].answer
        timings = [] if answer is None else self.timings.get(answer.key, [])
        return [timing.samples_per_s for timing in timings if timing.samples_per_s is not None]

    def rate(self, tool: str) -> float | None:
        rates = self.rates(tool)
        return statistics.fmean(rates) if rates else None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names, default=PARTS, help="of tune, time")
    parser.add_argument("--tools", type=names, help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--rounds", type=int, default=2, help="timings of each answer, those of --from among them")
    parser.add_argument("--timed-s", type=float, help="of one timing at the least: 20, with --quick 1")
    parser.add_argument("--max-timed-s", type=float, help="of one timing at the most: 60, with --quick 2")
    parser.add_argument("--limit-s", type=float, default=360.0, help="for one tool, or one timing")
    add_kept(parser)
    parser.add_argument("--quick", action="store_true", help="a tiny model on a CPU")
    given = with_kept(parser.parse_args())
    given.tools = given.tools or tuple(TOOLS)
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


DRIFTED = 0.05
"""Beyond it the halves of a timing differ by more than windows of a second do on a quiet machine."""

HEAD = (
    "tool | batch | workers | pinned | precision | recipe | samples/s, same loop | of ours | it claims | tuning s "
    "(search) | remark"
)


def tables(results: Results) -> str:
    ranked = sorted(results.tuned, key=lambda tool: results.rate(tool) or 0.0, reverse=True)
    parts = [
        ("What each leaves a user with", HEAD, [tool_row(results, tool) for tool in ranked]),
        ("Not measured", "job | why", [markdown_row(each) for each in results.failed.items()]),
    ]
    return "\n\n".join(markdown_table(*part) for part in parts if part[2])


def tool_row(results: Results, tool: str) -> str:
    tuned, title, rates = results.tuned[tool], TOOLS[tool].title, results.rates(tool)
    search = "" if tuned.search_s is None else f" ({tuned.search_s:.0f})"
    seconds, answer = f"{tuned.wall_s:.0f}{search}", tuned.answer
    if answer is None:
        return markdown_row([title, *[None] * 8, seconds, tuned.error])
    ours, timings = results.rate(OURS) if OURS in results.tuned else None, results.timings.get(answer.key, [])
    remarks = {tuned.remark, *(timing.error for timing in timings)} - {"", None}
    if any(timing.drift is not None and abs(timing.drift - 1) > DRIFTED for timing in timings):
        remarks.add("not steady")
    return markdown_row([
        title,
        answer.batch_size,
        answer.num_workers,
        "yes" if answer.pin_memory else "no",
        answer.precision,
        recipe_text(answer),
        rate_text(rates),
        f"{statistics.fmean(rates) / ours:.2f}" if rates and ours is not None else None,
        None if tuned.claimed_per_s is None else f"{tuned.claimed_per_s:,.0f}",
        seconds,
        "; ".join(sorted(remarks)),
    ])  # fmt: skip


def rate_text(rates: list[float]) -> str | None:
    if not rates:
        return None
    spread = "" if len(rates) == 1 else f" ({min(rates):,.0f} to {max(rates):,.0f})"
    return f"{statistics.fmean(rates):,.0f}{spread}"


def recipe_text(answer: Answer) -> str:
    chosen = {
        "channels_last": answer.channels_last,
        "fused optimizer": answer.fused,
        "compiled": answer.compile,
        "uint8 images": answer.uint8,
        "non-blocking copies": answer.non_blocking,
        "persistent workers": answer.persistent_workers,
        f"prefetch {answer.prefetch_factor}": answer.prefetch_factor not in (None, 2),
        "batches out of order": not answer.in_order,
    }
    return ", ".join(name for name, is_chosen in chosen.items() if is_chosen) or "as PyTorch has it"


def note(results: Results, quick: bool) -> str:
    subject = "a tiny model, a rehearsal" if quick else "ResNet-50 on JPEG files"
    text = [
        f"# Other tools beside loadtune on {results.host['Device']}, {datetime.now(UTC):%Y-%m-%d}: {subject}",
        ". ".join(f"{name}: {fact}" for name, fact in results.host.items()) + ".",
        "Commands, on one machine: " + ", then ".join(f"`{command}`" for command in results.commands) + ".",
        ABOUT,
        tables(results),
    ]
    return "\n\n".join(text) + "\n"


def main() -> int:
    given = arguments()
    host = read_host()
    if not given.quick:
        spec_of("jpeg-resnet50", small=False, folder=None)
        os.environ |= {"PHOTOS": f"{os.environ[JPEGS]}/all", "IMAGES": "100000"}  # for train.py
    results = Results(commands=[command()], boot=BOOT_ID.read_text().strip() if BOOT_ID.exists() else None)
    try:
        slot = Slot("cpu" if given.quick else None, host, given.keep / "logs")
        for path in given.earlier:
            results.absorb(msgspec.json.decode(path.read_bytes(), type=Results))
    except (DeviceError, OSError, ValueError) as error:
        sys.exit(f"{error}")
    results.host = describe_host(host, slot.device)
    setup = Setup(
        slot=slot,
        cell=SMOKE_FAKE if given.quick else JPEG,
        quick=given.quick,
        num_cores=host.num_usable_cores,
        limit_s=given.limit_s,
        timed_s=given.timed_s,
        max_s=given.max_timed_s,
        keep=given.keep,
    )
    with keeping(given, "peers.json", results, lambda: note(results, given.quick)) as save:
        if "tune" in given.parts:
            run_jobs(tuning_jobs(setup, results, given.tools), results.failed, given.until, save)
        if "time" in given.parts:
            run_jobs(timing_jobs(setup, results, given.tools, given.rounds), results.failed, given.until, save)
    print(tables(results))
    return int(given.quick and any(tuned.error for tuned in results.tuned.values()))


if __name__ == "__main__":
    sys.exit(main())
