"""Does the measured account of a training step add up, and how far off is the estimate from shapes?

    python benchmarks/memory_account.py [--models A,B] [--batch-size 64] [--device cuda:0] [--within-s 430]
                                        [--keep FOLDER] [--note FILE] [--quick]

On a machine with one GPU, under 9 minutes:

    python benchmarks/memory_account.py --within-s 430 --note benchmarks/results/DATE-GPU-memory-account.md

Six models × {fp32, bf16} × {SGD with momentum, AdamW}: the step's peak as read in steps that nobody watches, the share
of it that no line explains (goal: 2% at most in every cell), and the estimate's error (goal: a median of 5% at most).
--quick rehearses on a CPU with tiny models: what only CUDA can tell stays a dash.
"""

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from memory_note import markdown_row, markdown_table
from memory_probe import describe_host, make_slots

from loadtune.bench import BenchClient
from loadtune.errors import LoadtuneError
from loadtune.host import choose_device, read_host
from loadtune.records import (
    Device,
    OptimizerName,
    Precision,
    Recipe,
    StepAccount,
    StepVariant,
    WorkloadFacts,
    WorkloadSpec,
)
from loadtune.units import departure_text, percent_text, seconds_text

MIB = 2**20
MOST_UNEXPLAINED, MOST_ERROR = 0.02, 0.05

MODELS = {
    "resnet50": ("resnet50", "images"),
    "vit_b_16": ("vit_b_16", "images"),
    "mobilenet_v3_large": ("mobilenet_v3_large", "images"),
    "densenet121": ("densenet121", "images"),
    "convnext_tiny": ("convnext_tiny", "images"),
    "unet": ("unet", "masks"),
    "small_lm": ("small_lm", "tokens"),
}
"""Name → factories of `memory_cells`; the language model is beyond the six and comes last."""

QUICK_MODELS = {"tiny_images": ("tiny_images", "small_images"), "tiny_lm": ("tiny_lm", "small_tokens")}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adamw")
_HEAD = (
    "cell | measured peak | estimated peak | error | unexplained | activations | workspace | larger blocks | "
    "fragmentation | outside | forward only (unexplained) | step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell. None: not measured, and `problem` says why."""

    cell: str
    measured: StepAccount | None
    estimate: StepAccount | None
    problem: str | None = None

    @property
    def unexplained_fraction(self) -> float | None:
        """Share of the measured peak that is on no line, whichever its sign."""
        return None if self.measured is None else abs(self.measured.unexplained_bytes) / self.measured.peak_bytes

    @property
    def error_fraction(self) -> float | None:
        if self.measured is None or self.estimate is None:
            return None
        return self.estimate.peak_bytes / self.measured.peak_bytes - 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", help="cuda, cuda:1, a UUID. [default: the freest GPU]")
    parser.add_argument("--within-s", type=float, default=430.0, help="begin no further model after so many seconds")
    parser.add_argument("--keep", type=Path, help="folder for the benches' logs")
    parser.add_argument("--note", type=Path, help="file to keep the note in")
    parser.add_argument("--quick", action="store_true", help="tiny models, on a CPU")
    return parser.parse_args()


def measure_model(spec: WorkloadSpec, name: str, batch_size: int, device: Device, log: Path) -> Iterator[Row]:
    """One bench for all cells of a model; the estimates are this process's."""
    with BenchClient(spec, device, log_path=log) as bench:
        bench.start()  # it builds while this process works on shapes
        variants = [
            StepVariant(recipe=Recipe(precision=precision), batch_size=batch_size, optimizer=optimizer)
            for precision, optimizer in product(PRECISIONS, OPTIMIZERS)
        ]
        estimates = [estimate(spec, variant) for variant in variants]
        facts: WorkloadFacts = bench.describe()
        for variant, estimated in zip(variants, estimates, strict=True):
            cell = f"{name}-{variant.recipe.precision}-{variant.optimizer}"
            if variant.recipe.precision not in facts.precisions:
                yield Row(cell=cell, measured=None, estimate=estimated, problem="not native on this device")
                continue
            found = bench.account(variant)
            if isinstance(found, StepAccount):
                yield Row(cell=cell, measured=found, estimate=estimated)
            else:
                print(f"{cell}: {found.message}", file=sys.stderr)
                yield Row(cell=cell, measured=None, estimate=estimated, problem=found.kind)


def estimate(spec: WorkloadSpec, variant: StepVariant) -> StepAccount | None:
    """None: shapes alone cannot tell."""
    from loadtune.footprint.estimate import estimate_step
    from loadtune.footprint.plan import plan_of_spec, varied

    try:
        return estimate_step(varied(plan_of_spec(spec, variant.recipe.precision), variant), variant.batch_size)
    except LoadtuneError as error:
        print(f"no estimate: {error}", file=sys.stderr)
        return None


def table(rows: list[Row]) -> str:
    return markdown_table("Cells", _HEAD, map(_row, rows))


def _row(row: Row) -> str:
    found, estimated = row.measured, row.estimate
    peak = None if estimated is None else _mib(estimated.peak_bytes)
    if found is None:
        return markdown_row([row.cell, row.problem, peak, *[None] * 9])
    lines = found.at_peak
    rest = percent_text(abs(found.forward_only_unexplained_bytes) / found.forward_only_peak_bytes, 1)
    return markdown_row([
        row.cell,
        _mib(found.peak_bytes),
        peak,
        departure_text(row.error_fraction),
        percent_text(found.unexplained_bytes / found.peak_bytes, 2),
        _mib(lines.activations_bytes),
        _mib(lines.workspace_bytes),
        _mib(lines.rounding_bytes),
        _mib(found.fragmentation_bytes),
        _mib(found.outside_bytes),
        f"{_mib(found.forward_only_peak_bytes)} ({rest})",
        seconds_text(found.step_s),
    ])  # fmt: skip


def _mib(count: int | None) -> str | None:
    return None if count is None else f"{count / MIB:,.1f}"


def verdict(rows: list[Row]) -> list[tuple[str, bool]]:
    """Each goal that was measured, with its figures, and whether it is met."""
    shares = [row.unexplained_fraction for row in rows if row.unexplained_fraction is not None]
    errors = [abs(row.error_fraction) for row in rows if row.error_fraction is not None]
    goals = [(f"{len(shares)} of {len(rows)} cells measured", len(shares) == len(rows))]
    if shares:
        goals.append(
            (f"unexplained: worst {percent_text(max(shares), 2)} of the peak", max(shares) <= MOST_UNEXPLAINED)
        )
    if errors:
        median, worst = statistics.median(errors), max(errors)
        text = f"estimate's error: median {percent_text(median, 1)}, worst {percent_text(worst, 1)}"
        goals.append((text, median <= MOST_ERROR))
    return goals


def note(rows: list[Row], host: dict[str, str], batch_size: int, command: str) -> str:
    goals = [f"- {'Met' if met else '**Missed**'}: {text}." for text, met in verdict(rows)]
    return "\n".join([
        f"# The account of a training step on {host['GPU']}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        ". ".join(f"{name}: {fact}" for name, fact in host.items()) + ".",
        "",
        f"Command: `{command}`.",
        "",
        f"Batches of {batch_size}, contiguous, optimizers as PyTorch takes them by default, sizes in MiB. A peak is",
        "the allocator's own in five steady steps; unexplained is what none of the lines accounts for, with its sign.",
        "",
        *goals,
        "",
        table(rows),
        "",
    ])  # fmt: skip


def chosen_models(given: argparse.Namespace) -> dict[str, tuple[str, str]]:
    models = QUICK_MODELS if given.quick else MODELS
    names = given.models.split(",") if given.models else list(models)
    return {name: models[name] for name in names}


def main() -> int:
    given, started = arguments(), time.monotonic()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    host, name = read_host(), given.device or ("cpu" if given.quick else "cuda")
    logs = given.keep or Path(tempfile.mkdtemp(prefix="memory-account-"))
    logs.mkdir(parents=True, exist_ok=True)
    batch_size = 8 if given.quick else given.batch_size
    rows: list[Row] = []
    for model, (factory, dataset) in chosen_models(given).items():
        if time.monotonic() - started > given.within_s:
            print(f"{model}: left out, {given.within_s:.0f} s are over", file=sys.stderr)
            continue
        spec = WorkloadSpec(dataset=f"memory_cells:{dataset}", model=f"memory_cells:{factory}")
        try:
            for row in measure_model(spec, model, batch_size, choose_device(host, name), logs / f"{model}.log"):
                rows.append(row)
                print(f"{time.monotonic() - started:.0f} s {_row(row)}", file=sys.stderr, flush=True)
        except LoadtuneError as error:
            rows.append(Row(cell=model, measured=None, estimate=None, problem=str(error).splitlines()[0]))
    if given.note is not None:
        slots = make_slots((name.removeprefix("cuda:") if name != "cuda" else "0",), host, logs)
        words = [word for word in sys.argv[1:] if word not in ("--note", "--keep", str(given.note), str(given.keep))]
        command = shlex.join(["python", "benchmarks/memory_account.py", *words])
        given.note.write_text(note(rows, describe_host(host, slots), batch_size, command))
    print(table(rows))
    goals = verdict(rows)
    print("\n".join(["", *(f"{'met' if met else 'missed'}: {text}" for text, met in goals)]))
    return 0 if given.quick or all(met for _, met in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
