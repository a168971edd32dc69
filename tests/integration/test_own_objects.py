"""`tune` over a script's own dataset, model and loss: run, kept, resumed, not mistaken for names."""

import json
import re
import time

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loadtune import ResultError, load_result, tune
from loadtune.run.state import read_run, write_run


class Rows(TensorDataset):
    """Rows that take a while, so that also a busy machine confirms a rate."""

    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


INPUTS = torch.arange(10_000, dtype=torch.float32)[:, None].repeat(1, 4)


def test_a_run_of_objects_names_its_slow_step_keeps_labels_and_is_resumed_with_the_same_objects_alone(tmp_path, forked):
    settings = {"device": "cpu", "num_trials": 1, "time_budget_s": 50.0, "max_batch_size": 16}
    settings |= {"precisions": ("fp32",), "fix": {"num_workers": 2}}
    objects = {"dataset": Rows(INPUTS, 2 * INPUTS), "model": nn.Linear(4, 4), "loss": nn.functional.mse_loss}
    before, folder = objects["model"].weight.clone(), tmp_path
    result = tune(**settings, **objects, folder=folder)
    assert torch.equal(before, objects["model"].weight)
    assert result.best is not None
    assert re.fullmatch(r"test_own_objects\.py:\d+ time\.sleep\(0\.005\)", result.steps[0].name)
    assert result.steps[0].share > 0.5
    assert load_result(folder) == result
    kept = json.loads((folder / "result.json").read_text())["config"]["workload"]
    assert (kept["dataset"], kept["model"]) == ("Rows", "Linear")
    assert kept["objects"] == ["dataset", "model", "loss"]
    with pytest.raises(ResultError, match="Python objects"):
        read_run(folder, to_import=True)
    record = read_run(folder)
    record.ended = False  # as where it is killed just before
    write_run(record, folder)
    with pytest.raises(ResultError, match=r"cannot be resumed here: .*dataset was 'Rows' and is 'FakeData'"):
        tune(**settings, dataset="FakeData", model="resnet18", folder=folder, resume=True)
    assert load_result(folder) == result
    resumed = tune(**settings, **objects, folder=folder, resume=True)
    assert resumed.trials == result.trials
    assert resumed.best is not None
