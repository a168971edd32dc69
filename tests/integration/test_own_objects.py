"""`tune` over a script's own dataset, model and loss: run, kept, resumed, not mistaken for names; its memory grows."""

import dataclasses
import json
import re
import time

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from loadtune import ResultError, TuneConfig, UsageError, check_baseline, load_result, tune
from loadtune.records.config import Fixed


class Rows(TensorDataset):
    """Rows that take a while, so that also a busy machine confirms a rate. Each leaves half a MiB on the dataset."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.kept = []

    def __getitem__(self, index):
        self.kept.append(b"x" * (512 << 10))
        time.sleep(0.005)
        return super().__getitem__(index)


INPUTS = torch.arange(1_000_000, dtype=torch.float32)[:, None].repeat(1, 4)
"""So many that an epoch would take all RAM."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(config, objects, result, folder): targets that cross entropy could not take."""
    config = TuneConfig(
        device="cpu",
        num_trials=1,
        time_budget_s=50.0,
        max_batch_size=16,
        precisions=("fp32",),
        fix=(Fixed(name="num_workers", value=1),),
    )
    objects = {"dataset": Rows(INPUTS, 2 * INPUTS), "model": nn.Linear(4, 4), "loss": nn.functional.mse_loss}
    before, folder = objects["model"].weight.clone(), tmp_path_factory.mktemp("objects")
    result = tune(config=config, **objects, folder=folder)
    assert torch.equal(before, objects["model"].weight)
    return config, objects, result, folder


def test_a_run_of_objects_has_an_answer_and_keeps_labels(run):
    _, _, result, folder = run
    assert result.best is not None
    assert load_result(folder) == result
    kept = json.loads((folder / "result.json").read_text())["config"]["workload"]
    assert (kept["dataset"], kept["model"]) == ("Rows", "Linear")
    assert kept["objects"] == ["dataset", "model", "loss"]


def test_memory_that_grows_with_each_sample_is_told(run):
    (note,) = [note for note in run[2].notes if "grows with each sample" in note]
    grown = re.match(r"The memory of the workers grows with each sample loaded, by (\d+) KiB ", note)
    assert grown, note
    assert 256 < int(grown[1]) < 1024
    assert all(words in note for words in ("RAM in use reached", "are full after", "keeps Python objects"))


def test_it_is_not_measured_again_by_its_labels(run):
    with pytest.raises(ResultError, match="Python objects"):
        check_baseline(run[2])


def test_it_is_resumed_with_the_same_objects_alone(run):
    config, objects, result, folder = run
    with pytest.raises(UsageError, match="dataset, model, loss"):
        tune(config=dataclasses.replace(config, workload=result.config.workload), folder=folder, resume=True)
    assert load_result(folder) == result
    resumed = tune(config=config, **objects, folder=folder, resume=True)
    assert resumed.trials == result.trials
    assert resumed.best is not None
