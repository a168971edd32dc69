"""Asks each tool how to train one cell, in a process of its own with a time limit. In: where it runs. Out: `Tuned`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import readme_run
from memory_grid import Cell
from memory_pool import HERE, PLAIN, Slot
from peers_records import Answer, Timing, Tuned

from loadtune.changes import REMEDIES
from loadtune.records.config import TrialConfig
from loadtune.report.store import write_result

OURS, CHANGED = "ours", "ours-changed"
"""The second comes with the first: it is never asked."""
DEFAULT_BATCH_SIZE = 64
IN_LOOP = ("uint8_transfer", "fused_optimizer")
"""Changes of the code that the neutral loop can make."""
# What the tool may be told beside its defaults, so that a rehearsal on two cores ends within two minutes.
QUICK_RUN = ("--image-size", "32", "--num-classes", "5", "--time-budget", "20", "--device", "cpu")
QUICK_PYPI = ("--max-trials", "1", "--steps", "20")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where tools run and what they are asked about."""

    slot: Slot
    cell: Cell
    quick: bool
    num_cores: int
    limit_s: float
    """For one tool."""
    pypi: Path | None
    """Folder of PyPI's loadtune: wheels, or what pip install --target made."""
    timed_s: float
    max_s: float
    keep: Path | None = None
    """Folder for what the tools printed, and loadtune's result."""


def ask_child(setup: Setup, order: dict[str, Any], answer_of: Callable[[dict[str, Any]], Answer]) -> Tuned:
    """One of the finders, in a fresh process: its seconds count from that process's start, as all tools' do."""
    outcome = _order(setup, order)
    found = outcome.answer
    if found is None or found["found"] is None:
        return Tuned(wall_s=outcome.seconds, error=outcome.error or "it found no size")
    remark = f"{found['remark']}; {found['num_attempts']} sizes, {found['num_ooms']} of them out of memory"
    return Tuned(answer=answer_of(found), wall_s=outcome.seconds, search_s=found["seconds"], remark=remark)


def _order(setup: Setup, order: dict[str, Any]) -> Any:
    setup.slot.settle()
    child = setup.slot.start(PLAIN)
    child.give(order | {"cell": setup.cell.name, "device": setup.slot.device.kind})
    return child.outcome(setup.limit_s)


def ask_lightning(setup: Setup, mode: str) -> Tuned:
    return ask_child(
        setup,
        {"work": "lightning", "mode": mode, "own_data": True},
        lambda found: Answer(batch_size=found["found"], num_workers=found["advised_workers"]),
    )


def ask_accelerate(setup: Setup, start: int) -> Tuned:
    return ask_child(
        setup,
        {"work": "accelerate", "start": start},
        lambda found: Answer(batch_size=found["found"], num_workers=setup.num_cores),
    )


def ask_nobody(setup: Setup) -> Tuned:
    return Tuned(answer=Answer(batch_size=DEFAULT_BATCH_SIZE), remark="nothing is decided")


def ask_ours(setup: Setup) -> Tuned:
    """The README's command as it stands; on a rehearsal's cell with that cell's model."""
    command = readme_run.COMMAND
    if setup.quick:
        command = ["run", "--dataset", "FakeData", "--model", f"memory_cells:{setup.cell.model}", *QUICK_RUN]
    started = time.monotonic()
    try:
        run = readme_run.run_command(command, setup.limit_s, PYTHONPATH=own_paths())
    except subprocess.TimeoutExpired:
        return Tuned(wall_s=setup.limit_s, error=f"took more than {setup.limit_s:.0f} s")
    except subprocess.CalledProcessError as error:
        return Tuned(wall_s=time.monotonic() - started, error=_last_line(error.output))
    if setup.keep is not None:
        (setup.keep / "ours.txt").write_text(run.output)
        write_result(run.result, setup.keep)
    best = run.result.best
    if best is None:
        return Tuned(wall_s=run.seconds, error="it confirmed nothing")
    remark = f"loadtune {run.result.loadtune_version}, confirmed"
    return Tuned(
        answer=answer_of(best.config),
        wall_s=run.seconds,
        claimed_per_s=best.samples_per_s,
        remark=remark,
        changed=changed_by(run),
    )


def changed_by(run: readme_run.Run) -> Tuned | None:
    """With the changes of the code that gained. None: none did."""
    found = run.result.remedies
    if found is None or found.config is None:
        return None
    names = ", ".join(REMEDIES[name].title for name in found.config.remedies)
    try:
        answer = answer_of(found.config)
    except ValueError as error:
        return Tuned(wall_s=run.seconds, error=str(error))
    return Tuned(answer=answer, wall_s=run.seconds, claimed_per_s=found.samples_per_s, remark=f"changes: {names}")


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
        compile=config.recipe.compile,
        uint8="uint8_transfer" in config.remedies,
    )


def ask_pypi(setup: Setup) -> Tuned:
    if setup.pypi is None:
        return Tuned(error="not given: --pypi-loadtune says where it is")
    with tempfile.TemporaryDirectory() as folder:
        site = unpacked(setup.pypi, Path(folder) / "site")
        paths = [str(site), str(HERE), *foreign_paths(os.environ.get("PYTHONPATH", ""))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PEERS_CELL": setup.cell.name}
        environment["CUDA_VISIBLE_DEVICES"] = setup.slot.device.uuid or ""
        options = ["--auto-batch", *(QUICK_PYPI if setup.quick else ())]
        command = [sys.executable, str(HERE / "peers_pypi.py"), str(site), f"{folder}/raw.json", *options]
        started = time.monotonic()
        output, error = run_limited(command, environment, folder, setup.limit_s)
        wall_s = time.monotonic() - started
    if error is not None:
        return Tuned(wall_s=wall_s, error=error)
    return pypi_tuned(json.loads(_last_line(output)), wall_s)


def pypi_tuned(said: dict[str, Any], wall_s: float) -> Tuned:
    knobs = said["knobs"]
    answer = Answer(
        batch_size=said["batch_size"],
        num_workers=knobs["num_workers"],
        pin_memory=knobs["pin_memory"],
        prefetch_factor=knobs["prefetch_factor"],
        persistent_workers=knobs["persistent_workers"] and knobs["num_workers"] > 0,
        non_blocking=knobs["non_blocking"],
        precision="fp16" if knobs["amp"] else "fp32",
        compile=knobs["compile"],
        num_threads=knobs["num_threads"],
    )
    remark = f"{said['version']}, tune --auto-batch, {said['num_trials']} trials"
    return Tuned(answer=answer, wall_s=wall_s, claimed_per_s=said["throughput"], remark=remark)


def unpacked(folder: Path, target: Path) -> Path:
    """A folder that can be imported from: the wheels in it laid open, or itself where there are none."""
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return (target if wheels else folder).resolve()


def own_paths() -> str:
    """A PYTHONPATH by which this checkout and the rehearsal's model are found."""
    return os.pathsep.join(filter(None, [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH")]))


def foreign_paths(pythonpath: str) -> list[str]:
    """Entries of a PYTHONPATH in which this project's own loadtune does not lie."""
    return [path for path in pythonpath.split(os.pathsep) if path and not (Path(path) / "loadtune").exists()]


def run_limited(command: list[str], environment: dict[str, str], folder: str, limit_s: float) -> tuple[str, str | None]:
    """Its stdout, and why it is no answer; it and all it started are gone afterwards."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "", f"took more than {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return output, None if process.returncode == 0 else _last_line(output) or f"exit code {process.returncode}"


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or [""])[-1]


def time_answer(setup: Setup, answer: Answer) -> Timing:
    """The neutral loop in a fresh process."""
    order = {
        "work": "loop",
        "answer": json.loads(answer.key),
        "timed_s": setup.timed_s,
        "max_s": setup.max_s,
    }
    outcome = _order(setup, order)
    return Timing(**outcome.answer) if outcome.answer else Timing(seconds=outcome.seconds, error=outcome.error)


@dataclass(frozen=True, slots=True)
class Tool:
    title: str
    estimate_s: float
    """On an H200, for what still fits into a call."""
    ask: Callable[[Setup], Tuned]


TOOLS = {
    "defaults": Tool("PyTorch's defaults, batch 64", 0.0, ask_nobody),
    "accelerate": Tool("Accelerate's finder from 8192, workers = cores", 30.0, partial(ask_accelerate, start=8192)),
    "accelerate-128": Tool(
        "Accelerate's finder from its default of 128, workers = cores", 20.0, partial(ask_accelerate, start=128)
    ),
    "pypi": Tool("PyPI's loadtune", 75.0, ask_pypi),
    "lightning": Tool("Lightning's finder and its worker advice", 85.0, partial(ask_lightning, mode="power")),
    "lightning-binsearch": Tool("the same, binsearch", 160.0, partial(ask_lightning, mode="binsearch")),
    OURS: Tool("loadtune run", 300.0, ask_ours),
    CHANGED: Tool("the same with its code changes", 0.0, ask_ours),
}
QUICK_TOOLS = tuple(name for name in TOOLS if name not in ("lightning-binsearch", "accelerate-128", CHANGED))
