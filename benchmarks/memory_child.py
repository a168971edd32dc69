"""One piece of work of `memory.py` in a fresh process. Plain PyTorch, but for `probe`, which asks loadtune.

    (echo '{"work": "truth", "cell": "resnet50-bf16-sgd", "batch_size": 3300}'; sleep 60) | python memory_child.py

Exit status as in `processes`: 0 it fits, 3 out of memory, 4 anything else. It is started ahead of its order, so that
importing torch costs no time on the device; no CUDA context exists before the order comes.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from cells import Cell, Training, cell_named, device_of
from processes import Order, Say, is_oom, serve

TRUTH_STEPS = 3
EPOCH_STEPS = 20
"""A plain loop meets an evaluation and a last partial batch once an epoch; here several times in two minutes."""


def truth(order: Order, say: Say) -> dict[str, object]:
    """Three training steps on a resident batch; that it returns means that the size fits."""
    training = Training(cell_named(order["cell"]), device_of(order))
    batch = training.make_batch(order["batch_size"])
    for _ in range(TRUTH_STEPS):
        training.step(*batch)
    training.synchronize()
    return {}


def soak(order: Order, say: Say) -> dict[str, object]:
    """Train for a while as a script does: a new batch each step, made while the last one still lives; after each epoch
    the partial batch that the dataset leaves over, and an evaluation of a full and of that partial batch."""
    training, batch_size = Training(cell_named(order["cell"]), device_of(order)), order["batch_size"]
    partial = len(training.dataset) % batch_size
    started = time.monotonic()
    step_s, retries, evaluations = list[float](), list[tuple[float, int]](), 0
    oom: str | None = None

    def train(*batch: torch.Tensor) -> None:
        begun = time.monotonic()
        training.step(*batch)
        training.synchronize()
        now = time.monotonic()
        step_s.append(now - begun)
        retries.append((now - started, training.figures().get("num_retries", 0)))

    try:
        while time.monotonic() - started < order["seconds"] or not evaluations:
            batch = training.make_batch(batch_size)
            train(*batch)
            if len(step_s) % EPOCH_STEPS == 0:
                if partial > 1:  # batch normalisation refuses 1
                    part = [each[:partial].clone() for each in batch]
                    train(*part)
                    training.evaluate(*part)
                training.evaluate(*batch)
                training.synchronize()
                evaluations += 1
    except RuntimeError as error:
        if not is_oom(error):
            raise
        oom = str(error).splitlines()[0]
    seconds, figures = time.monotonic() - started, training.figures()
    first_half = [number for at, number in retries if at < seconds / 2]
    late = retries[-1][1] - (first_half or [0])[-1] if retries else 0
    return figures | {
        "partial_batch_size": partial,
        "num_steps": len(step_s),
        "num_evaluations": evaluations,
        "seconds": seconds,
        "step_s": statistics.median(step_s) if step_s else None,
        "num_late_retries": late if figures else None,
        "oom": oom,
    }


def hold(order: Order, say: Say) -> dict[str, object]:
    """Take a share of the device and keep it until stdin closes."""
    device = device_of(order)
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 1 << 24
    held = torch.empty(int(order["fraction"] * total), dtype=torch.uint8, device=device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    say(event="holding", bytes=held.nbytes)
    threading.Event().wait()
    return {}


def probe(order: Order, say: Say) -> dict[str, object]:
    """The ceiling that loadtune finds, asked for as its controller does."""
    from loadtune.records.config import WorkloadSpec
    from loadtune.records.facts import Device
    from loadtune.training.client import TrainingClient

    cell = cell_named(order["cell"])
    spec = WorkloadSpec(
        dataset=f"cells:{cell.dataset}",
        model=cell.model_path,
        num_classes=cell.num_classes,
        optimizer=cell.optimizer,
    )
    device = Device(kind=order["device"], uuid=order["uuid"], name=order["name"])
    with tempfile.TemporaryDirectory() as folder:
        log = Path(order.get("log") or folder) / f"training-{cell.name}-{os.getpid()}.log"
        with TrainingClient(spec, device, log_path=log) as training:
            started = time.monotonic()
            facts = training.describe()
            ready = time.monotonic()
            ceiling = _ceiling(training, cell, facts)
            seconds = {"bench_s": ready - started, "probe_s": time.monotonic() - ready}
    probes = [
        {
            "batch_size": each.batch_size,
            "failed": each.failure is not None,
            "num_retries": each.num_alloc_retries,
            "num_steady_retries": each.num_steady_retries,
        }
        for each in ceiling.probes
    ]
    sizes = {"hard": ceiling.batch_size, "safe": ceiling.safe_batch_size, "probes": probes}
    num_ooms = sum(each.failure is not None and each.failure.is_of_memory for each in ceiling.probes)
    return sizes | {"num_probes": len(ceiling.probes), "num_ooms": num_ooms} | seconds


def _ceiling(training: Any, cell: Cell, facts: Any) -> Any:
    """The call that is measured."""
    from loadtune.decide.ceiling import MemoryProbe
    from loadtune.records.config import Recipe
    from loadtune.seams import drive

    recipe = Recipe(precision=cell.precision, memory_format=cell.memory_format, fused_optimizer=True)
    caps: Any = {"dataset": facts.dataset_length} | ({} if cell.cap is None else {"cap": cell.cap})
    return drive(MemoryProbe(recipe, caps, smallest=facts.min_batch_size).verify(), training.try_batch)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    serve({"truth": truth, "soak": soak, "hold": hold, "probe": probe})
