"""Asks each tool how to train one cell, in a process of its own with a time limit. In: where it runs. Out: `Tuned`."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import readme_run
from cells import Cell
from peers_child import Answer, Timing
from processes import Outcome, Slot, python_path

from loadtune.changes import CHANGES
from loadtune.records.config import TrialConfig
from loadtune.store import write_result

OURS, CHANGED = "ours", "ours-changed"
"""The second comes with the first: it is never asked."""

CHILD = "peers_child.py"
DEFAULT_BATCH_SIZE = 64
IN_LOOP = ("uint8_transfer", "fused_optimizer")
"""Changes of the code that the neutral loop can make."""

OWN = ("--batch-size", "256", "--num-workers", "4", "--pin-memory", "--amp", "bf16")

QUICK_RUN = ("--image-size", "32", "--num-classes", "5", "--time-budget", "60", "--device", "cpu")
"""What loadtune is told beside its defaults, so that a rehearsal on two cores ends within minutes."""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What became of asking one tool."""

    answer: Answer | None = None
    wall_s: float = 0.0
    """From the start of its process to its end, imports and all."""
    search_s: float | None = None
    """Of that its search, where the tool's own share could be told apart."""
    claimed_per_s: float | None = None
    """Samples/s that the tool itself gives for its answer."""
    remark: str = ""
    error: str | None = None
    changed: "Tuned | None" = None
    """The same asking's second answer: with changes of the training code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where tools run and what they are asked about."""

    slot: Slot
    cell: Cell
    quick: bool
    num_cores: int
    limit_s: float
    """For one tool."""
    timed_s: float
    max_s: float
    keep: Path | None = None
    """Folder for what loadtune printed, and its result."""

    def run(self, order: dict[str, Any]) -> Outcome:
        return self.slot.run(CHILD, order | {"cell": self.cell.name}, self.limit_s)


def ask_finder(setup: Setup, work: str) -> Tuned:
    """In a fresh process: its seconds count from that process's start, as all tools' do."""
    outcome = setup.run({"work": work})
    found = outcome.answer
    if found is None or found["found"] is None:
        return Tuned(wall_s=outcome.seconds, error=outcome.error or "it found no size")
    workers = found.get("advised_workers", setup.num_cores)
    answer = Answer(batch_size=found["found"], num_workers=workers)
    return Tuned(answer=answer, wall_s=outcome.seconds, search_s=found["seconds"], remark=found["remark"])


def ask_ours(setup: Setup) -> Tuned:
    """With `train.py` and its settings; on a rehearsal's cell with that cell's model."""
    command = ["run", "--dataset", "train:make_dataset", "--model", "train:make_model", *OWN]
    if setup.quick:
        command = ["run", "--dataset", "FakeData", "--model", setup.cell.model_path, *QUICK_RUN]
    started = time.monotonic()
    try:
        run = readme_run.run_command(command, setup.limit_s, PYTHONPATH=python_path())
    except subprocess.TimeoutExpired:
        return Tuned(wall_s=setup.limit_s, error=f"took more than {setup.limit_s:.0f} s")
    except subprocess.CalledProcessError as error:
        return Tuned(wall_s=time.monotonic() - started, error=(error.output.strip().splitlines() or [""])[-1])
    if setup.keep is not None:
        (setup.keep / "ours.txt").write_text(run.output)
        write_result(run.result, setup.keep)
    best = run.result.best
    if best is None:
        return Tuned(wall_s=run.seconds, error="it confirmed nothing")
    return Tuned(
        answer=answer_of(best.config),
        wall_s=run.seconds,
        claimed_per_s=best.samples_per_s,
        remark=f"loadtune {run.result.loadtune_version}, confirmed",
        changed=changed_by(run),
    )


def changed_by(run: readme_run.Run) -> Tuned | None:
    """With the changes of the code that gained. None: none did."""
    found = run.result.remedies
    if found is None or found.config is None:
        return None
    names = ", ".join(CHANGES[name].title for name in found.config.remedies)
    try:
        answer = answer_of(found.config)
    except ValueError as error:
        return Tuned(wall_s=run.seconds, error=str(error))
    claimed = None if found.samples_per_s is None else found.samples_per_s.value
    return Tuned(answer=answer, wall_s=run.seconds, claimed_per_s=claimed, remark=f"changes: {names}")


def answer_of(config: TrialConfig) -> Answer:
    """As the code that a run prints has it. Raises ValueError for a change of the code that the loop cannot make."""
    loader = config.loader
    if unknown := [name for name in config.remedies if name not in IN_LOOP]:
        raise ValueError(f"the loop cannot make these changes: {', '.join(unknown)}")
    with_workers = loader.num_workers > 0
    return Answer(
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        prefetch_factor=loader.prefetch_factor if with_workers else None,
        persistent_workers=loader.persistent_workers and with_workers,
        in_order=loader.in_order or not with_workers,
        non_blocking=loader.pin_memory,
        precision=config.precision,
        channels_last=config.recipe.memory_format == "channels_last",
        fused=config.recipe.fused_optimizer,
        uint8="uint8_transfer" in config.remedies,
    )


def time_answer(setup: Setup, answer: Answer) -> Timing:
    """The neutral loop in a fresh process."""
    order = {"work": "loop", "answer": msgspec.to_builtins(answer), "timed_s": setup.timed_s, "max_s": setup.max_s}
    outcome = setup.run(order)
    return Timing(**outcome.answer) if outcome.answer else Timing(seconds=outcome.seconds, error=outcome.error)


@dataclass(frozen=True, slots=True)
class Tool:
    title: str
    estimate_s: float
    """On an H200, for what still fits into a call."""
    ask: Callable[[Setup], Tuned]


def typed(setup: Setup, num_workers: int) -> Tuned:
    """As in many a script."""
    ahead = {"pin_memory": True, "non_blocking": True, "persistent_workers": True}
    return Tuned(answer=Answer(batch_size=256, num_workers=num_workers, precision="bf16", **ahead))


TOOLS = {
    "own": Tool("the script: batch 256, 4 workers, pinned, bf16", 0.0, lambda setup: typed(setup, 4)),
    "typed": Tool("the script with workers = cores", 0.0, lambda setup: typed(setup, setup.num_cores)),
    "defaults": Tool(
        "PyTorch's defaults, batch 64",
        0.0,
        lambda setup: Tuned(answer=Answer(batch_size=DEFAULT_BATCH_SIZE), remark="nothing is decided"),
    ),
    "accelerate": Tool(
        "Accelerate's finder from its default of 128, workers = cores",
        20.0,
        lambda setup: ask_finder(setup, "accelerate"),
    ),
    "lightning": Tool("Lightning's finder and its worker advice", 60.0, lambda setup: ask_finder(setup, "lightning")),
    OURS: Tool("loadtune run", 200.0, ask_ours),
    CHANGED: Tool("loadtune run, with its changes of the code", 0.0, ask_ours),
}
