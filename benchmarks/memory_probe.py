"""How near the memory probe comes to the truth, beside what other tools find, and whether its answers hold.

    python benchmarks/memory_probe.py [--parts ceiling,peers,soak,held,clean] [--cells A,B] [--devices 0,1,2,3]
                                      [--soak-s 120] [--keep FOLDER] [--from JSON] [--note FILE] [--smoke]

The truth of a cell is bisected to 1% with plain PyTorch, a fresh process for every try: a size is over the ceiling if
it fails in two of three. Goal: a hard ceiling of 0.97 to 1.00 of it in every cell, in 5 probes and 1 OOM at most,
ResNet-50 within 10 s; no OOM in two minutes of training at the safe one; the device's memory afterwards as before.
Parts may be run in several calls: --keep writes what is known, --from takes it up again (`soak` needs ceilings).
--smoke rehearses on a CPU.
"""

import argparse
import platform
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import memory_note
from memory_jobs import PARTS, Plan, list_jobs, run_jobs
from memory_parts import Limits
from memory_pool import Slot, end_all
from memory_records import Results, from_json, to_json

from loadtune import __version__
from loadtune.errors import DeviceError
from loadtune.host import choose_device, read_host
from loadtune.host.gpu import read_memory_used_bytes
from loadtune.records.facts import HostFacts


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=names, default=PARTS, help="of ceiling, peers, soak, held, clean")
    parser.add_argument("--cells", type=names, help="all of them if not given")
    parser.add_argument("--devices", type=names, help="numbers among the visible GPUs, or cpu; one cell runs on each")
    parser.add_argument("--soak-s", type=float, default=120.0)
    parser.add_argument("--limit-s", type=float, default=240.0, help="for one process")
    parser.add_argument("--within-s", type=float, help="begin no job that would probably end later than this")
    parser.add_argument("--known-truth", action="store_true", help="do not look again for truths that --from has")
    parser.add_argument("--from", dest="earlier", type=Path, action="append", default=[], help="kept by another call")
    parser.add_argument("--keep", type=Path, help="folder for memory-probe.json and logs")
    parser.add_argument("--note", type=Path, help="file to keep the note in")
    parser.add_argument("--smoke", action="store_true", help="tiny models with a made-up ceiling")
    return parser.parse_args()


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def without_paths(words: list[str]) -> list[str]:
    """The command as the note gives it: where its files lay is nobody's concern."""
    paths = ("--keep", "--note", "--from", "--pypi-loadtune")
    kept = [word for word, before in zip(words, ["", *words], strict=False) if before not in paths]
    return [word for word in kept if word.partition("=")[0] not in paths]


def make_slots(devices: tuple[str, ...] | None, host: HostFacts, logs: Path) -> list[Slot]:
    """One for each device; asks NVML once, which makes no context."""
    slots = []
    for number, name in enumerate(devices or ("0",)):
        device = choose_device(host, "cpu" if name == "cpu" else f"cuda:{name}")
        uuid = device.uuid
        used = (lambda uuid=uuid: read_memory_used_bytes(uuid)) if uuid else (lambda: None)
        slots.append(Slot(number, device, logs, used))
    return slots


def describe_host(host: HostFacts, slots: list[Slot]) -> dict[str, str]:
    facts = {
        "GPU": ", ".join(f"{count} × {name}" for name, count in Counter(s.device.name for s in slots).items()),
        "host": f"{host.cpu_name}, {host.num_usable_cores} cores, {host.os}",
        "driver": host.driver or "–",
        "Python": platform.python_version(),
        "CUDA": host.cuda or "–",
        "loadtune": __version__,
    }
    for package in ("torch", "torchvision", "lightning", "accelerate"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "–"
    return facts


def note(results: Results) -> str:
    head = [
        f"# The memory probe on {results.host['GPU']}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        ". ".join(f"{name}: {fact}" for name, fact in results.host.items()) + ".",
        "",
        "Commands: " + ", then ".join(f"`{command}`" for command in results.commands) + ".",
        "",
        "A truth is the largest size that trained and the smallest that did not, each in two of up to three fresh ",
        "processes; hard ÷ truth is given over both. ✗ marks a size that ran out of memory.",
    ]
    return "\n".join([*head, "", memory_note.tables(results), ""])


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit: processes end, what is known is kept
    host = read_host()
    keep = given.keep or Path(tempfile.mkdtemp(prefix="memory-probe-"))
    keep.mkdir(parents=True, exist_ok=True)
    results = Results(commands=[shlex.join(["python", "benchmarks/memory_probe.py", *without_paths(sys.argv[1:])])])
    for path in given.earlier:
        results.absorb(from_json(path.read_bytes()))
    try:
        slots = make_slots(given.devices or (("cpu",) if given.smoke else None), host, keep / "logs")
    except DeviceError as error:
        sys.exit(str(error))
    results.host = describe_host(host, slots)

    closed = threading.Event()

    def save() -> None:
        if closed.is_set():
            return
        (keep / "memory-probe.json").write_bytes(to_json(results))
        if given.note is not None:
            given.note.write_text(note(results))

    plan = Plan(
        parts=given.parts,
        cells=given.cells,
        smoke=given.smoke,
        known_truth=given.known_truth,
        limits=Limits(process_s=given.limit_s, soak_s=given.soak_s, logs=keep / "logs"),
        until=None if given.within_s is None else time.monotonic() + given.within_s,
    )
    try:
        for phase in (1, 2):
            run_jobs(list_jobs(plan, results, phase), slots, results, plan.until, save)
    finally:
        save()
        closed.set()  # what jobs say once their processes are ended is no result
        end_all()
    print(memory_note.tables(results))
    goals = memory_note.goals(results)
    print("\n".join(["", *(f"missed: {goal}" for goal, met in goals if not met)]))
    print(f"{sum(met for _, met in goals)} of {len(goals)} goals met; {keep / 'memory-probe.json'}")
    return 0 if all(met for _, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
