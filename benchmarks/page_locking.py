"""What page-locking does to the rate of a run, and whether leaving its windows out makes runs of one kind agree.

    python benchmarks/page_locking.py [--batch-sizes 256 128] [--workers 16] [--rounds 5] [--workload NAME] [--small]
                                      [--jpegs FOLDER] [--note FILE]

Runs of two batch sizes, as trials are run: each in a bench of its own, so that it locks its blocks anew, and then each
again and again in one, where it finds them locked. Every run is judged twice over the same windows, as trials are and
by a rule that does not know of locking. ``spread`` is the standard deviation between runs. A last table has every run:
how much it locked within its windows, and how long its first batch took; blocks are locked ahead for twice
as long, and for batches that wait for one.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from regret_workloads import SPECS, spec_of

from loadtune import __version__
from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, Sampler, choose_device, read_host
from loadtune.records import (
    Device,
    HostFacts,
    LoaderConfig,
    Measurement,
    Recipe,
    TrialConfig,
    TuneConfig,
    Window,
    samples_per_s,
)
from loadtune.stages.run import TRIAL_SHARE
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial

MAX_S = TRIAL_SHARE * TuneConfig().time_budget_s


@dataclass(frozen=True, slots=True)
class Run:
    """One run, judged in both ways."""

    batch_size: int
    fresh: bool
    """Nothing was pinned before it. False: the run before pinned blocks of the same size."""
    per_s: float
    blind_per_s: float
    num_left_out: int
    lock_s: float | None
    first_batch_s: float
    seconds: float


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs=2, default=[256, 128])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each size, anew and again")
    parser.add_argument("--workload", choices=SPECS, default="fake-resnet50")
    parser.add_argument("--jpegs", type=Path, help="folder for the JPEG files, made where it is empty")
    parser.add_argument("--small", action="store_true", help="a model that a CPU trains")
    parser.add_argument("--note", type=Path)
    return parser.parse_args()


def blind_per_s(windows: Sequence[Window], num_workers: int) -> float:
    """What a rule that does not know of locking had answered at its end."""
    rule = StoppingRule(num_workers=num_workers, max_s=MAX_S)
    for window in windows:
        if not rule.add(replace(window, page_lock_s=None)):
            break
    return samples_per_s(rule.kept)


def trained(
    bench: BenchClient, sampler: Sampler, config: TrialConfig
) -> tuple[Measurement, StoppingRule, list[Window]]:
    """One run as a trial is run, the rule that ended it, and all its windows."""
    windows: list[Window] = []
    batch_s = config.batch_size * bench.describe().sample_s
    rule = StoppingRule(num_workers=config.loader.num_workers, max_s=MAX_S, batch_s=batch_s)
    found = run_trial(bench, sampler, MonotonicClock(), config, rule, windows.append)
    if not isinstance(found, Measurement):
        raise SystemExit(f"{config}: {found.kind}: {found.message}")
    return found, rule, windows


def measure(bench: BenchClient, sampler: Sampler, config: TrialConfig, *, fresh: bool) -> Run:
    found, rule, windows = trained(bench, sampler, config)
    locks = [window.page_lock_s for window in windows if window.page_lock_s is not None]
    run = Run(
        batch_size=config.batch_size,
        fresh=fresh,
        per_s=found.samples_per_s,
        blind_per_s=blind_per_s(windows, config.loader.num_workers),
        num_left_out=rule.num_left_out,
        lock_s=sum(locks) if locks else None,
        first_batch_s=found.first_batch_s,
        seconds=found.seconds,
    )
    print(f"batch {run.batch_size}: {run.per_s:,.0f}/s", flush=True)
    return run


def configs_of(given: argparse.Namespace) -> list[TrialConfig]:
    return [
        TrialConfig(
            loader=LoaderConfig(batch_size=batch_size, num_workers=given.workers, pin_memory=True),
            recipe=Recipe(precision="fp16", memory_format="channels_last"),
        )
        for batch_size in given.batch_sizes
    ]


def start_anew(bench: BenchClient, config: TrialConfig) -> None:
    """A bench whose model is warm and which has pinned nothing yet."""
    bench.close()
    bench.time_compute(config.recipe, config.batch_size, 0.1)


def measure_all(bench: BenchClient, sampler: Sampler, configs: Sequence[TrialConfig], rounds: int) -> list[Run]:
    runs = []
    for config in [config for _ in range(rounds) for config in configs]:
        start_anew(bench, config)
        runs.append(measure(bench, sampler, config, fresh=True))
    for config in configs:
        measure(bench, sampler, config, fresh=True)  # counted nowhere: its blocks are what the next ones find
        runs += [measure(bench, sampler, config, fresh=False) for _ in range(rounds)]
    return runs


def table(runs: Sequence[Run]) -> str:
    head = (
        "| batch | blocks | runs | samples/s | spread | not knowing of locking | spread | windows left out | locking "
        "within windows | first batch | a run |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    kinds = dict.fromkeys((run.batch_size, run.fresh) for run in runs)
    return "\n".join([head, *(line([run for run in runs if (run.batch_size, run.fresh) == kind]) for kind in kinds)])


def line(runs: Sequence[Run]) -> str:
    """Of one batch size, fresh or not."""
    rates, blind = [run.per_s for run in runs], [run.blind_per_s for run in runs]
    locks = [run.lock_s for run in runs if run.lock_s is not None]
    cells = [
        str(runs[0].batch_size),
        "locked anew" if runs[0].fresh else "kept",
        str(len(runs)),
        f"{statistics.fmean(rates):,.0f}",
        spread(rates),
        f"{statistics.fmean(blind):,.0f}",
        spread(blind),
        f"{statistics.fmean(run.num_left_out for run in runs):.1f}",
        f"{statistics.fmean(locks):.2f} s" if locks else "not told",
        f"{statistics.fmean(run.first_batch_s for run in runs):.2f} s",
        f"{statistics.fmean(run.seconds for run in runs):.1f} s",
    ]
    return f"| {' | '.join(cells)} |"


def each(runs: Sequence[Run]) -> str:
    head = (
        "| batch | blocks | first batch | locking within windows | samples/s | not knowing of it |\n"
        "|---|---|---|---|---|---|"
    )
    cells = (
        f"| {run.batch_size} | {'anew' if run.fresh else 'kept'} | {run.first_batch_s:.2f} s | "
        f"{'not told' if run.lock_s is None else f'{run.lock_s:.2f} s'} | {run.per_s:,.0f} | {run.blind_per_s:,.0f} |"
        for run in runs
    )
    return "\n".join([head, *cells])


def spread(rates: Sequence[float]) -> str:
    return f"{statistics.stdev(rates) / statistics.fmean(rates):.1%}" if len(rates) > 1 else "–"


def host_line(host: HostFacts) -> str:
    return (
        f"Host: {host.cpu_name}, {host.num_usable_cores} cores, {host.os}. Python {host.python}, torch {host.torch}, "
        f"driver {host.driver or '–'}, loadtune {__version__}."
    )


def note(given: argparse.Namespace, host: HostFacts, device: Device, runs: Sequence[Run]) -> str:
    return "\n".join(
        [
            f"# Page-locking and the rate on {device.name}, {datetime.now(UTC):%Y-%m-%d}",
            "",
            host_line(host),
            "",
            f"Command: `python benchmarks/page_locking.py --workload {given.workload} --batch-sizes "
            f"{' '.join(map(str, given.batch_sizes))} --workers {given.workers} --rounds {given.rounds}`.",
            "",
            table(runs),
            "",
            each(runs),
            "",
        ]
    )


def main() -> None:
    given = arguments()
    host = read_host()
    device = choose_device(host, None)
    spec = spec_of(given.workload, small=given.small, folder=given.jpegs)
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(spec, device, log_path=Path(folder) / "bench.log") as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sampler,
    ):
        configs = configs_of(given)
        if len({config.loader.block_bytes(bench.describe().sample_bytes) for config in configs}) < 2:
            raise SystemExit(f"--batch-sizes {given.batch_sizes}: both go into blocks of one size; take others")
        runs = measure_all(bench, sampler, configs, given.rounds)
    print(table(runs), each(runs), sep="\n\n")
    if given.note:
        given.note.write_text(note(given, host, device, runs))


if __name__ == "__main__":
    main()
