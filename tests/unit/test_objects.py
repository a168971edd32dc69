"""What `tune_loader` was given as objects: labelled, packed, or refused with what to write instead."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loadtune import TuneConfig, UsageError, WorkloadSpec, tune_loader
from loadtune.objects import with_objects

DATASET, MODEL = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), nn.Linear(4, 2)


def taken(spec=None, **parts):
    return with_objects(
        TuneConfig(workload=spec or WorkloadSpec()), **{"dataset": None, "model": None, "loss": None} | parts
    )


def test_names_alone_need_no_objects():
    config = TuneConfig()
    assert with_objects(config, dataset=None, model=None, loss=None) == (config, None)


def test_the_record_keeps_labels_and_which_parts_were_objects():
    config, objects = taken(dataset=DATASET, model=lambda: MODEL, loss=nn.MSELoss())
    assert (config.workload.dataset, config.workload.model) == ("TensorDataset", "<lambda>")
    assert config.workload.objects == ("dataset", "model", "loss")
    assert objects is not None
    config, _ = taken(WorkloadSpec(model="resnet18"), dataset=DATASET)
    assert (config.workload.model, config.workload.objects) == ("resnet18", ("dataset",))


@pytest.mark.parametrize("part", ["dataset", "model"])
def test_an_object_in_the_spec_is_refused_with_where_it_goes(part):
    config = TuneConfig(workload=WorkloadSpec(**{part: {"dataset": DATASET, "model": MODEL}[part]}))
    with pytest.raises(UsageError) as raised:
        tune_loader(config)
    assert f"tune_loader(config, {part}=...)" in str(raised.value)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"dataset": "CIFAR10"}, ["takes an object", "WorkloadSpec(dataset='CIFAR10')"]),
        ({"dataset": DataLoader(DATASET)}, ["is a DataLoader", "map-style", "`.dataset`"]),
        ({"model": 7}, ["is a int", "torch.nn.Module"]),
        ({"loss": "mse"}, ["'mse'", "(outputs, targets)"]),
    ],
)
def test_what_is_no_such_object_is_told(parts, words):
    with pytest.raises(UsageError) as raised:
        taken(**parts)
    assert all(word in str(raised.value) for word in words), str(raised.value)
