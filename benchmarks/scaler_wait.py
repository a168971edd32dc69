"""Whether steps that wait for the device take it longer beside a thread that pins, and steps that do not as long.

    python benchmarks/scaler_wait.py [--batch-size 256] [--workers 16] [--rounds 3] [--model resnet50] [--image-size N]
                                     [--note FILE]

FakeData. Each recipe is timed on a batch that is on the device already, then trained as trials are, batches pinned and
not, in turn, once a round: SGD in fp16 (a GradScaler waits in every step) and in bf16; AdamW in fp16, not fused (it
waits) and fused (it does not), and in bf16. *Stretch*: what a step takes the device in training ÷ alone, by its own
events.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from page_locking import host_line, trained

from loadtune.bench import BenchClient
from loadtune.host import Sampler, choose_device, read_host
from loadtune.records import (
    ComputePoint,
    Device,
    HostFacts,
    LoaderConfig,
    Measurement,
    OptimizerName,
    Recipe,
    TrialConfig,
    WorkloadSpec,
)

RECIPES: dict[OptimizerName, tuple[Recipe, ...]] = {
    "sgd": (Recipe(precision="fp16"), Recipe(precision="bf16")),
    "adamw": (Recipe(precision="fp16"), Recipe(precision="fp16", fused_optimizer=True), Recipe(precision="bf16")),
}


@dataclass(slots=True)
class Case:
    """One recipe, pinned or not, and its runs so far."""

    optimizer: OptimizerName
    config: TrialConfig
    alone_s: float
    """A step on a batch that is on the device."""
    runs: list[Measurement] = field(default_factory=list)

    @property
    def step_s(self) -> float | None:
        """What a step took the device in training, mean over runs. None: not timed apart."""
        per_step = [
            sum(w.compute_s or 0.0 for w in run.windows) / sum(w.num_steps for w in run.windows)
            for run in self.runs
            if all(w.compute_s is not None for w in run.windows)
        ]
        return statistics.fmean(per_step) if per_step else None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--note", type=Path)
    return parser.parse_args()


def measured(
    given: argparse.Namespace, host: HostFacts, device: Device, optimizer: OptimizerName, folder: str
) -> list[Case]:
    """All of one optimizer's."""
    spec = WorkloadSpec(model=given.model, image_size=given.image_size, optimizer=optimizer)
    with (
        BenchClient(spec, device, log_path=Path(folder) / f"{optimizer}.log") as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sampler,
    ):
        cases = list(cases_of(given, bench, device, optimizer))
        for _ in range(given.rounds):
            for case in cases:
                found, _, _ = trained(bench, sampler, case.config)
                case.runs.append(found)
                print(f"{name(case)}: {found.samples_per_s:,.0f}/s", flush=True)
    return cases


def cases_of(given: argparse.Namespace, bench: BenchClient, device: Device, optimizer: OptimizerName) -> Iterator[Case]:
    facts = bench.describe()
    layout = "channels_last" if facts.takes_channels_last and device.kind == "cuda" else "contiguous"
    for plain in RECIPES[optimizer]:
        if plain.precision not in facts.precisions:
            continue
        recipe = replace(plain, memory_format=layout)
        alone = bench.time_compute(recipe, given.batch_size, 1.0)
        if not isinstance(alone, ComputePoint):
            raise SystemExit(f"{recipe}: {alone.kind}: {alone.message}")
        for pin in (False, True) if device.kind == "cuda" else (False,):
            loader = LoaderConfig(batch_size=given.batch_size, num_workers=given.workers, pin_memory=pin)
            yield Case(optimizer, TrialConfig(loader=loader, recipe=recipe), alone.quickest_step_s)


def name(case: Case) -> str:
    fused = ", fused" if case.config.recipe.fused_optimizer else ""
    pinned = "pinned" if case.config.loader.pin_memory else "not pinned"
    return f"{case.optimizer}{fused}, {case.config.precision}, {pinned}"


def line(case: Case) -> str:
    rates = [run.samples_per_s for run in case.runs]
    step_s = case.step_s
    threads = [t.pin_thread_cores for run in case.runs if (t := run.telemetry) and t.pin_thread_cores is not None]
    cells = [
        case.optimizer + (", fused" if case.config.recipe.fused_optimizer else ""),
        case.config.precision,
        "yes" if case.config.recipe.waits_each_step else "no",
        "yes" if case.config.loader.pin_memory else "no",
        " ".join(f"{rate:,.0f}" for rate in rates),
        f"{1e3 * case.alone_s:.1f} ms",
        "–" if step_s is None else f"{1e3 * step_s:.1f} ms",
        "–" if step_s is None else f"{step_s / case.alone_s:.2f}",
        f"{statistics.fmean(threads):.2f}" if threads else "–",
    ]
    return f"| {' | '.join(cells)} |"


def table(cases: list[Case]) -> str:
    head = (
        "| optimizer | precision | waits | pinned | samples/s | a step alone | in training | stretch | pinning "
        "thread's cores |\n|---|---|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *map(line, cases)])


def note(given: argparse.Namespace, host: HostFacts, device: Device, cases: list[Case]) -> str:
    size = f" --image-size {given.image_size}" if given.image_size else ""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return f"""# Steps that wait for the device, beside a thread that pins, on {device.name}, {today}

{host_line(host)}

Command: `python benchmarks/scaler_wait.py --model {given.model}{size} --batch-size {given.batch_size} --workers \
{given.workers} --rounds {given.rounds}`.

{table(cases)}
"""


def main() -> None:
    given = arguments()
    host = read_host()
    device = choose_device(host, None)
    with tempfile.TemporaryDirectory() as folder:
        cases = [case for optimizer in RECIPES for case in measured(given, host, device, optimizer, folder)]
    print(table(cases))
    if given.note:
        given.note.write_text(note(given, host, device, cases))


if __name__ == "__main__":
    main()
