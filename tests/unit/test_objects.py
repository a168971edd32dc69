"""What `tune` was given as objects: labelled, packed, or refused with what to write instead."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loadtune import Job, TuneConfig, UsageError, WorkloadSpec, YourSettings, tune
from loadtune.objects import job_of, refuse_missing, with_objects
from loadtune.workload.loaders import LoaderParts

DATASET, MODEL = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), nn.Linear(4, 2)
LOADER: "DataLoader[object]" = DataLoader(DATASET, batch_size=4)


class Parts:
    """Stands in for `LiveParts`: keeps what would be packed."""

    def __init__(self, **parts: object) -> None:
        vars(self).update(parts)


@pytest.fixture
def packed(monkeypatch):
    found = []
    monkeypatch.setattr("loadtune.workload.live.LiveParts", Parts)
    monkeypatch.setattr("loadtune.workload.live.pack_parts", lambda parts: found.append(parts) or "packed")
    return found


def taken(spec=None, **parts):
    return with_objects(TuneConfig(workload=spec or WorkloadSpec()), Job(**parts))


def compute_loss(model, batch):
    return model(batch).sum()


def make_step(device):
    return lambda batch: None


def make_optimizer(parameters):
    return torch.optim.Adam(parameters)


def test_names_alone_need_no_objects():
    config = TuneConfig()
    assert with_objects(config, Job()) == (config, None)


def test_the_record_keeps_labels_and_which_parts_were_objects():
    config, objects = taken(dataset=DATASET, model=lambda: MODEL, loss=nn.MSELoss())
    assert (config.workload.dataset, config.workload.model) == ("TensorDataset", "<lambda>")
    assert config.workload.objects == ("dataset", "model", "loss")
    assert objects is not None
    config, _ = taken(WorkloadSpec(model="resnet18"), dataset=DATASET)
    assert (config.workload.model, config.workload.objects) == ("resnet18", ("dataset",))


def test_a_live_loader_is_taken_apart_and_a_function_is_not(packed):
    config, objects = taken(loader=LOADER, model=MODEL, compute_loss=compute_loss, optimizer=make_optimizer)
    assert objects == "packed"
    assert isinstance(packed[0].loader, LoaderParts)
    assert packed[0].loader.dataset is DATASET
    spec = config.workload
    assert (spec.loader, spec.compute_loss, spec.optimizer) == ("DataLoader", "compute_loss", "make_optimizer")
    assert spec.title == "DataLoader + Linear"
    assert spec.named_optimizer is None
    taken(loader=lambda: LOADER, step=make_step)
    assert not isinstance(packed[1].loader, LoaderParts)


def test_names_and_numbers_of_a_job_go_into_the_config():
    config, objects = with_objects(TuneConfig(), Job(optimizer="adamw", accumulate=4, precision="bf16"))
    assert objects is None
    assert (config.workload.optimizer, config.workload.accumulate) == ("adamw", 4)
    assert config.workload.named_optimizer == "adamw"
    assert config.yours == YourSettings(precision="bf16")


def test_a_job_stands_alone():
    job = Job(loader=LOADER, model=MODEL)
    assert job_of(job, model=None) is job
    with pytest.raises(UsageError, match=r"a Job and also model=\.\.\."):
        job_of(job, model=MODEL)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "no data"),
        ({"model": MODEL}, "no data"),
        ({"loader": LOADER}, "no model"),
        ({"dataset": DATASET, "loss": nn.MSELoss()}, "no model"),
    ],
)
def test_without_a_config_data_and_a_model_are_needed(parts, words):
    with pytest.raises(UsageError, match=words):
        tune(**parts)


@pytest.mark.parametrize(
    ("parts", "spec", "words"),
    [
        ({"loader": LOADER}, WorkloadSpec(), "no model"),
        ({"loader": LOADER}, WorkloadSpec(accumulate=2), "no model"),
        ({"model": MODEL}, WorkloadSpec(), "no data"),
        ({"model": MODEL}, WorkloadSpec(model="resnet18"), "no data"),
        ({"optimizer": make_optimizer}, WorkloadSpec(dataset="CIFAR10"), "no model"),
    ],
)
def test_defaults_of_a_config_do_not_complete_a_job_of_objects(parts, spec, words):
    with pytest.raises(UsageError, match=words):
        tune(**parts, config=TuneConfig(device="cpu", workload=spec))


@pytest.mark.parametrize(
    ("parts", "spec"),
    [
        ({"loader": LOADER}, WorkloadSpec(model="resnet18")),
        ({"model": MODEL}, WorkloadSpec(dataset="CIFAR10")),
        ({"model": MODEL}, WorkloadSpec(loader="job.py:make_loader")),
        ({"dataset": DATASET}, WorkloadSpec(step="job.py:make_step")),
        ({"loader": LOADER, "step": make_step}, WorkloadSpec()),
    ],
)
def test_names_that_were_chosen_complete_it(parts, spec):
    assert refuse_missing(Job(**parts), spec) is None  # and raises nothing


def test_the_config_is_checked_beside_the_objects(packed):
    config = TuneConfig(yours=YourSettings(precision="bf16"))
    with pytest.raises(UsageError, match=r"step=\.\.\. is given together with YourSettings"):
        tune(LOADER, step=make_step, config=config)


@pytest.mark.parametrize("part", ["dataset", "model"])
def test_an_object_in_the_spec_is_refused_with_where_it_goes(part):
    config = TuneConfig(workload=WorkloadSpec(**{part: {"dataset": DATASET, "model": MODEL}[part]}))
    with pytest.raises(UsageError) as raised:
        tune(config=config)
    assert f"tune({part}=...)" in str(raised.value)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"dataset": "CIFAR10"}, ["takes an object", "WorkloadSpec(dataset='CIFAR10')"]),
        ({"dataset": LOADER}, ["dataset is a DataLoader", "Pass it as loader"]),
        ({"dataset": 7}, ["is a int", "`__getitem__`"]),
        ({"loader": DATASET}, ["loader is a TensorDataset", "dataset=..."]),
        ({"loader": LOADER, "dataset": DATASET}, ["together with dataset=...", "already has its"]),
        ({"loader": LOADER, "collate": list}, ["together with collate=..."]),
        ({"collate": 7}, ["collate is 7", "list of samples"]),
        ({"model": 7}, ["is 7", "torch.nn.Module"]),
        ({"loss": "mse"}, ["'mse'", "WorkloadSpec(loss='mse')"]),
        ({"loss": 7}, ["(outputs, targets)"]),
        ({"compute_loss": 7}, ["(model, batch)"]),
        ({"loss": nn.MSELoss(), "compute_loss": compute_loss}, ["compute_loss=... is given together with loss=..."]),
        ({"optimizer": "adam"}, ["'adam'", "'sgd'", "'adamw'", "lambda parameters"]),
        ({"optimizer": torch.optim.SGD(MODEL.parameters(), lr=0.1)}, ["is a SGD", "function that makes it"]),
        ({"step": make_step, "model": MODEL}, ["step=... is given together with model=..."]),
        ({"step": make_step, "accumulate": 2, "precision": "bf16"}, ["accumulate=..., precision=..."]),
        ({"accumulate": "4"}, ["accumulate is '4'", "whole number of at least 1"]),
        ({"accumulate": 2.5}, ["accumulate is 2.5"]),
    ],
)
def test_what_cannot_be_used_is_told(parts, words):
    with pytest.raises(UsageError) as raised:
        taken(**parts)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_missing_objects_of_a_run_are_named():
    spec = WorkloadSpec(loader="DataLoader", step="make_step", objects=("loader", "step"))
    with pytest.raises(UsageError, match=r"The loader and the step of this run were .* loader=\.\.\., step=\.\.\."):
        taken(spec)


def test_an_unknown_precision_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="precision is 'float16'; it must be fp32, fp16 or bf16"):
        taken(dataset=DATASET, model=MODEL, precision="float16")


def test_an_iterator_is_no_dataset():
    with pytest.raises(UsageError, match="dataset is a list_iterator, which can be read only once"):
        taken(dataset=iter([1, 2]), model=MODEL)
