"""How often the controller looks at the machine while a bench trains, and what that costs it.

    python benchmarks/sampling.py [--workers 0 8] [--seconds 20] [--model resnet18] [--note PATH]

The bench trains on FakeData with the given numbers of workers, and the controller, this process, does what it does in
a trial: samples, and listens to the bench. ``Hz`` are readings by seconds, ``longest gap`` is the longest time between
two of them, ``of a core`` this process's CPU time by seconds, all from the first window's end to the last's. ``sampler
alone`` has no bench to listen to and no processes to follow. ``--note`` writes the table as a dated note.
"""

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadtune import __version__
from loadtune.bench import BenchClient
from loadtune.host import Sampler, choose_device, read_host
from loadtune.host.pace import PROBE_SHARE
from loadtune.host.probes import Scheduled, machine_probes
from loadtune.host.sensing import Look, Probe
from loadtune.records import (
    Device,
    HostFacts,
    LoaderConfig,
    Recipe,
    Telemetry,
    TrainingRun,
    TrialConfig,
    Window,
    WorkloadSpec,
)
from loadtune.report.utilization import missing_lines

WANTED_HZ, WANTED_SHARE = 10.0, 0.05
WINDOW_S = 0.4


@dataclass(frozen=True, slots=True)
class Row:
    """One span of sampling."""

    what: str
    seconds: float
    hz: float
    longest_gap_s: float
    share: float
    telemetry: Telemetry
    looks: str
    """Probes and their looks a second."""


class Counted(Probe):
    """Another probe, whose looks are counted."""

    def __init__(self, probe: Probe) -> None:
        self._probe, self.figures, self.looked_s = probe, probe.figures, list[float]()

    def look(self, now_s: float) -> Look:
        self.looked_s.append(now_s)
        return self._probe.look(now_s)

    def close(self) -> None:
        self._probe.close()

    def hz(self, began_s: float, ended_s: float) -> str:
        seen = sum(began_s <= at_s <= ended_s for at_s in self.looked_s)
        return f"{type(self._probe).__name__} {seen / (ended_s - began_s):.1f}"


def counted(device: Device, pid: Callable[[], int | None], num_cores: int) -> list[Scheduled]:
    probes = machine_probes(device, pid, num_cores)
    return [dataclasses.replace(scheduled, probe=Counted(scheduled.probe)) for scheduled in probes]


@dataclass(slots=True)
class Stopwatch:
    """Watches windows until they have lasted long enough."""

    wanted_s: float
    began: tuple[float, float] | None = None
    ended: tuple[float, float] = (0.0, 0.0)

    def __call__(self, window: Window) -> bool:
        self.ended = (time.monotonic(), time.process_time())
        self.began = self.began or self.ended
        return self.ended[0] - self.began[0] < self.wanted_s


def row(
    what: str, sampler: Sampler, probes: Sequence[Scheduled], began: tuple[float, float], ended: tuple[float, float]
) -> Row:
    seconds = ended[0] - began[0]
    telemetry = sampler.between(began[0], ended[0])
    assert telemetry is not None
    read_s = [read_s for read_s in sampler.read_s if began[0] <= read_s <= ended[0]]
    gap_s = max((later - earlier for earlier, later in itertools.pairwise(read_s)), default=seconds)
    share = (ended[1] - began[1]) / seconds
    looks = ", ".join(each.probe.hz(began[0], ended[0]) for each in probes if isinstance(each.probe, Counted))
    return Row(what, seconds, telemetry.num_readings / seconds, gap_s, share, telemetry, looks)


def alone(device: Device, num_cores: int, seconds: float) -> Row:
    probes = counted(device, lambda: None, num_cores)
    with Sampler(device, lambda: None, num_cores, probes=probes) as sampler:
        time.sleep(1)
        began = (time.monotonic(), time.process_time())
        time.sleep(seconds)
        return row("sampler alone", sampler, probes, began, (time.monotonic(), time.process_time()))


def beside(bench: BenchClient, device: Device, num_cores: int, num_workers: int, seconds: float) -> Row:
    loader = LoaderConfig(batch_size=32, num_workers=num_workers, pin_memory=device.kind == "cuda")
    watch = Stopwatch(seconds)
    probes = counted(device, lambda: bench.pid, num_cores)
    with Sampler(device, lambda: bench.pid, num_cores, probes=probes) as sampler:
        run = bench.time_training(TrialConfig(loader=loader, recipe=Recipe()), WINDOW_S, watch)
    if not isinstance(run, TrainingRun) or watch.began is None:
        raise SystemExit(f"no training with {num_workers} workers: {run}")
    return row(f"{num_workers} workers", sampler, probes, watch.began, watch.ended)


def table(rows: list[Row]) -> str:
    head = "| bench | seconds | Hz | longest gap | of a core | workers seen | goals |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *(table_row(row) for row in rows)])


def table_row(row: Row) -> str:
    met = "met" if row.hz >= WANTED_HZ and row.share < WANTED_SHARE else "missed"
    figures = f"{row.seconds:.0f} | {row.hz:.1f} | {row.longest_gap_s * 1000:.0f} ms | {row.share:.1%}"
    return f"| {row.what} | {figures} | {len(row.telemetry.workers)} | {met} |"


def note(given: argparse.Namespace, host: HostFacts, device: Device, rows: list[Row]) -> str:
    without = missing_lines(rows[-1].telemetry) or ("of what was looked for, nothing",)
    gpu = () if device.kind == "cuda" else ("a GPU: neither NVML nor its performance counters are in this",)
    lines = [
        f"# Sampling on {device.name}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"Host: {host.cpu_name}, {host.num_usable_cores} cores, {host.os}. Python {host.python}, torch {host.torch}, "
        f"driver {host.driver or '–'}, loadtune {__version__}.",
        "",
        f"Command: `python benchmarks/sampling.py --workers {' '.join(map(str, given.workers))} --seconds "
        f"{given.seconds:g} --model {given.model}`. Goals: {WANTED_HZ:g} Hz and more, "
        f"under {WANTED_SHARE:.0%} of a core.",
        "",
        table(rows),
        "",
        f"Looks a second, beside {rows[-1].what}: {rows[-1].looks}. One that costs more than {PROBE_SHARE:.1%} of a "
        "core looks less often; the driver's own buffer holds the duty cycle between looks.",
        "",
        "Missing here:",
        "",
        *(f"- {line}" for line in (*gpu, *without)),
    ]
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 8])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--note", type=Path)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    host = read_host()
    device, num_cores = choose_device(host, None), host.num_usable_cores
    rows = [alone(device, num_cores, given.seconds)]
    spec = WorkloadSpec(model=given.model, image_size=given.image_size)
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(spec, device, log_path=Path(folder) / "bench.log") as bench,
    ):
        bench.describe()
        rows += [beside(bench, device, num_cores, workers, given.seconds) for workers in given.workers]
    text = note(given, host, device, rows)
    print(text)
    if given.note is not None:
        given.note.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
