"""PyPI's unrelated `loadtune` 0.3.0 on one cell, by its own command line. Runs where that one is the `loadtune` found.

    PYTHONPATH=FOLDER PEERS_CELL=fake-resnet50-fp32-sgd python peers_pypi.py WHERE-IT-IS RAW.json [its options]

The file is the workload that it is given as well: it calls `get_workload` in each of its processes. The last line on
stdout is what it recommends, as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import memory_cells
from memory_grid import cell_named
from memory_train import loss_of, make_optimizer

import loadtune

DEFAULT_BATCH_SIZE = 64


def get_workload() -> Any:
    cell = cell_named(os.environ["PEERS_CELL"])

    def train_step(model: Any, optimizer: Any, batch: Any, device: Any) -> Any:
        inputs, targets = (part.to(device) for part in batch)
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return loadtune.Workload(
        name=cell.name,
        make_dataset=getattr(memory_cells, cell.dataset),
        make_model=getattr(memory_cells, cell.model),
        train_step=train_step,
        make_optimizer=lambda model: make_optimizer(cell, model),
        default_batch_size=DEFAULT_BATCH_SIZE,
    )


def recommended(raw: dict[str, Any]) -> dict[str, Any]:
    """By its own rule: its best trial where that beats the baseline, as its last line on a terminal says."""
    from loadtune.experiment import Trial, best_trial
    from loadtune.knobs import Knobs

    trials = [Trial(Knobs.from_dict(t["knobs"]), t["reason"], t["result"]) for t in raw["trials"]]
    best, baseline = best_trial(trials), raw["baseline"]
    better = best is not None and best.throughput > baseline["throughput"]
    return {
        "knobs": best.knobs.to_dict() if better else baseline["knobs"],
        "throughput": best.throughput if better else baseline["throughput"],
        "batch_size": (best.result if better else baseline)["batch_size"],
        "num_trials": len(trials),
    }


def main() -> int:
    where, raw, *options = sys.argv[1:]
    if not Path(loadtune.__file__).is_relative_to(where):
        sys.exit(f"the loadtune that was found lies in {loadtune.__file__}, not below {where}")
    from loadtune.cli import main as tune

    report = str(Path(raw).with_suffix(".md"))
    failed = tune(["tune", __file__, "--no-plots", "--save-raw", raw, "--out", report, *options])
    if failed:
        return failed
    print(json.dumps(recommended(json.loads(Path(raw).read_text())) | {"version": loadtune.__version__}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
