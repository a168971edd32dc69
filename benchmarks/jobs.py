"""The jobs of `examples/`, each tuned by the command in its docstring: baseline, best, and the bottleneck.

    python benchmarks/jobs.py [NAME …] [--time-budget 120] [--out FOLDER]
    python benchmarks/jobs.py --ways [--time-budget 90] [--out FOLDER]

``--ways``: one job, that of `examples/lightning_module.py` in fp32, described in four ways: dataset and model on the
command line, loader and training step, loader and model in Python, and by the adapter. The four answers should agree.
"""

import argparse
import ast
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import loadtune
from loadtune.records.facts import Device
from loadtune.records.result import Finalist, Resource, TuningResult, Winner
from loadtune.units import counted

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--time-budget", type=float, default=120.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder)
        if given.ways:
            runs = in_four_ways(given.time_budget, out)
        else:
            names = given.names or sorted(path.stem for path in EXAMPLES.glob("*.py"))
            runs = {name: (lambda name=name: by_command(name, given.time_budget, out / name)) for name in names}  # type: ignore[misc]
        print(
            "| job | baseline | best | gain (99% CI) | gain at the same batch size | limited by | run time (s) |"
            "\n|---|---|---|---|---|---|---|"
        )
        for name, run in runs.items():
            begun = time.monotonic()
            result = run()
            print(f"| {name} | {row(result)} | {time.monotonic() - begun:.0f} |", flush=True)
    return 0


def by_command(name: str, budget_s: float, out: Path) -> TuningResult | None:
    """None: no result was written; what the command said is printed."""
    doc = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text("utf-8"))) or ""
    found = re.search(r"^Tune:\s+(.*)", doc, re.M | re.S)
    assert found is not None, f"{name} has no command"
    words = shlex.split(found[1])
    program = [sys.executable, *(["-m", *words] if words[0] == "loadtune" else words[1:])]
    return _ran([*program, "--time-budget", str(budget_s), "--out", str(out)], out)


def _ran(words: list[str], out: Path) -> TuningResult | None:
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    found = sorted(out.glob("*/*/result.json"))
    if not found:
        print(ran.stdout + ran.stderr)
        return None
    return loadtune.load_result(found[-1])


def net() -> nn.Module:
    """The model of `examples/lightning_module.py`, without Lightning."""
    from lightning_module import Classifier

    return Classifier().layers


def make_step(device: torch.device) -> Callable[[Any], torch.Tensor]:
    """The same training, as a whole training step."""
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: Any) -> torch.Tensor:
        inputs, labels = batch
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def in_four_ways(budget_s: float, out: Path) -> dict[str, Callable[[], TuningResult | None]]:
    """The name of each way, and a function that runs it."""
    from lightning_module import Classifier, Data

    data = Data()
    data.setup("fit")

    def config(name: str, **others: Any) -> loadtune.TuneConfig:
        return loadtune.TuneConfig(time_budget_s=budget_s, out=str(out / name), **others)

    fp32: dict[str, Any] = {"precisions": ("fp32",)}
    command = [
        *(sys.executable, "-m", "loadtune", "run", "--dataset", "examples/lightning_module.py:Signals"),
        *("--model", "benchmarks/jobs.py:net", "--optimizer", "adamw", "--batch-size", "32", "--precision", "fp32"),
        *("--time-budget", str(budget_s), "--out", str(out / "command")),
    ]
    return {
        "dataset and model": lambda: _ran(command, out / "command"),
        "loader and step": lambda: loadtune.tune(data.train_dataloader(), step=make_step, config=config("step")),
        "loader and model in Python": lambda: loadtune.tune(
            data.train_dataloader(), model=net(), optimizer="adamw", config=config("python", **fp32)
        ),
        "adapter": lambda: loadtune.tune(loadtune.from_lightning(Classifier(), data), config=config("adapter", **fp32)),
    }


def row(result: TuningResult | None) -> str:
    """Baseline, best, gain, gain at the same batch size, bottleneck."""
    if result is None or result.best is None:
        return "– | nothing confirmed | | | "
    baseline = next((each for each in result.finalists if each.config == result.yours), None)
    found = result.bottleneck
    limit = _limit_text(found.limits[0].resource, result.device) if found is not None and found.holds else "not named"
    same = result.best_at_your_batch
    return " | ".join(
        (_text(baseline), _text(result.best), _gain(result.best), "–" if same is None else _gain(same), limit)
    )


def _limit_text(resource: Resource, device: Device) -> str:
    if resource == "device":
        return "GPU" if device.kind == "cuda" else "CPU"
    return "training process" if resource == "main" else resource


def _text(each: Finalist | Winner | None) -> str:
    if each is None:
        return "not measured"
    loader = each.config.loader
    pinned = ", pinned" if loader.pin_memory else ""
    workers = counted(loader.num_workers, "worker")
    precision = "as in the step" if each.config.precision == "own" else each.config.precision
    setting = f"batch {loader.batch_size}, {workers}{pinned}, {precision}"
    half = "" if each.half_width_fraction is None else f" ± {each.half_width_fraction:.0%}"
    return f"{each.samples_per_s:,.0f}/s{half} ({setting})"


def _gain(winner: Winner) -> str:
    gain = winner.speedup
    if gain is None:
        return "–"
    return f"{gain.value:.2f}" if gain.low is None else f"{gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
