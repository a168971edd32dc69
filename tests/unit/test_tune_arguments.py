"""What `tune` was given: objects, names and keywords; labelled, packed, or refused before anything is written."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from page_rig import golden
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from loadtune import Job, TuningResult, UsageError, tune, tune_command
from loadtune.api.given import in_python, pack_job
from loadtune.records.config import Fixed, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.measurement import Progress
from loadtune.records.result import Result
from loadtune.store import RUN_FILE
from loadtune.workload.loaders import LoaderParts

DATASET, MODEL = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), nn.Linear(4, 2)
LOADER: "DataLoader[object]" = DataLoader(DATASET, batch_size=4)
MODEL_AND_DATA = Job(loader="a:b", model="resnet18")


@pytest.fixture
def packed(monkeypatch):
    found = []
    monkeypatch.setattr("loadtune.workload.user_code.pack_parts", lambda parts: found.append(parts) or "packed")
    return found


def taken(spec=None, **parts):
    return pack_job(spec or WorkloadSpec(), Job(**parts))


def compute_loss(model, batch):
    return model(batch).sum()


def make_optimizer(parameters):
    return torch.optim.Adam(parameters)


def test_labels_and_which_parts_were_objects_are_kept_and_a_live_loader_is_taken_apart(packed):
    spec, _ = taken(WorkloadSpec(model="resnet18"), dataset=DATASET, loss=nn.MSELoss())
    assert (spec.dataset, spec.model, spec.objects) == ("TensorDataset", "resnet18", ("dataset", "loss"))
    spec, objects = taken(loader=LOADER, model=MODEL, loss=compute_loss, optimizer=make_optimizer)
    assert objects == "packed"
    assert isinstance(packed[1]["loader"], LoaderParts)
    assert packed[1]["loader"].dataset is DATASET
    assert (spec.loader, spec.loss, spec.optimizer) == ("DataLoader", "compute_loss", "make_optimizer")
    assert spec.title == "DataLoader + Linear"
    assert spec.named_optimizer is None
    taken(loader=lambda: LOADER, model=MODEL)
    assert not isinstance(packed[2]["loader"], LoaderParts), "it is a function"


def test_keywords_of_the_table_reach_the_config(monkeypatch):
    found = []
    monkeypatch.setattr("loadtune.api.tune.tune_config", lambda config, *_, **how: found.append(config) or golden())
    tune(dataset="CIFAR10", model="resnet18", batch_size=8, precision="bf16", time_budget_s=60, fix={"num_workers": 2})
    tune(MODEL_AND_DATA, num_trials=3, precisions=["fp32"], seed=4)
    tune(Job(loader="a:b", model="resnet18", optimizer="adamw", accumulate=4, precision="bf16"))
    assert found == [
        TuneConfig(
            workload=WorkloadSpec(dataset="CIFAR10", model="resnet18"),
            yours=YourSettings(batch_size=8, precision="bf16"),
            time_budget_s=60,
            fix=(Fixed(name="num_workers", value=2),),
        ),
        TuneConfig(
            workload=WorkloadSpec(loader="a:b", model="resnet18", seed=4), num_trials=3, precisions=("fp32",), seed=4
        ),
        TuneConfig(
            workload=WorkloadSpec(loader="a:b", model="resnet18", optimizer="adamw", accumulate=4),
            yours=YourSettings(precision="bf16"),
        ),
    ]


def test_a_command_is_a_job_with_the_settings_of_any_other(monkeypatch):
    found = []
    monkeypatch.setattr("loadtune.api.tune.tune_config", lambda config, *_, **how: found.append(config) or golden())
    tune_command([sys.executable, Path("train.py"), "-j", "4"], batch_size=8, fix={"num_workers": 2})
    workload = WorkloadSpec(command=(sys.executable, "train.py", "-j", "4"))
    fix = (Fixed(name="num_workers", value=2),)
    assert found == [TuneConfig(workload=workload, yours=YourSettings(batch_size=8), fix=fix)]
    monkeypatch.setenv("LOADTUNE_TUNING", "1")
    with pytest.raises(UsageError, match="this script is being tuned, and it starts loadtune again"):
        tune_command([sys.executable, "train.py"])
    with pytest.raises(UsageError, match="the command is 'python"):
        tune_command("python train.py")
    with pytest.raises(UsageError, match="tune_command has no argument dataset"):
        tune_command(["python", "train.py"], dataset="CIFAR10")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bach_size": 8}, "no argument bach_size. It takes loader, dataset,"),
        ({"time_budget_s": "60"}, "time_budget_s is '60'; it must be a number of seconds"),
        ({"pin_memory": "no"}, "pin_memory is 'no'; it must be True or False"),
        ({"num_trials": 0}, "num_trials is 0"),
        ({"batch_size": 64, "max_batch_size": 32}, "batch_size is 64, more than max_batch_size 32"),
        ({"loss": "mse"}, "loss is 'mse'; it must be an import path"),
        ({"loader": MODEL_AND_DATA}, "a Job and also model"),
        ({"loader": None}, "no data"),
        ({"model": None}, "no model"),
        ({"resume": True}, "resume is True without a folder"),
    ],
)
def test_messages_name_the_keywords(wrong, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        tune(**({"loader": LOADER, "model": MODEL, "out": str(tmp_path / "out")} | wrong))
    assert list(tmp_path.iterdir()) == []
    said = "Give --model FILE.py:fn, not --precision; --freeze FILE.py:12 is of `loadtune exec`."
    assert in_python(said) == "Give model=fn, not precisions; --freeze FILE.py:12 is of `loadtune exec`."


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"dataset": LOADER}, ["dataset is of type DataLoader", "Pass a DataLoader as loader"]),
        ({"dataset": 7}, ["is 7", "`__getitem__`"]),
        ({"dataset": iter([1, 2])}, ["dataset is of type list_iterator", "`__iter__` that begins anew"]),
        ({"precision": "float16"}, ["precision is 'float16'; it must be fp32, fp16 or bf16"]),
        ({"loader": DATASET}, ["loader is of type TensorDataset", "as dataset"]),
        ({"model": 7}, ["is 7", "torch.nn.Module"]),
        ({"loss": 7}, ["(outputs, targets)"]),
        ({"optimizer": torch.optim.SGD(MODEL.parameters(), lr=0.1)}, ["is of type SGD", "function that makes"]),
        ({"accumulate": "4"}, ["accumulate is '4'", "whole number of at least 1"]),
    ],
)
def test_what_cannot_be_used_is_told(parts, words):
    with pytest.raises(UsageError) as raised:
        taken(**parts)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_without_a_listener_progress_and_the_folder_are_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = replace(golden(), cut_short="interrupted by Ctrl-C")

    def tells(run: Any, **others: object) -> Result:
        listener = run.journal.listener
        listener(Progress(stage="memory", message="little memory is left", warning=True, left_s=1.0))
        listener(Progress(stage="memory", message="fp32 fits", left_s=1.0))
        (tmp_path / RUN_FILE).touch()
        return cut

    monkeypatch.setattr("loadtune.api.tune.tune_on", tells)
    assert tune(MODEL_AND_DATA, device="cpu", folder=tmp_path) == TuningResult.of(cut)
    seen = capsys.readouterr()
    assert seen.out == ""
    told = [line.removeprefix("loadtune: ") for line in seen.err.splitlines()]
    assert told[:3] == ["[memory] memory · at most 1.0 s left", "note: little memory is left", "[memory] fp32 fits"]
    assert told[3].startswith("Cut short: interrupted by Ctrl-C. 9 measurements are kept.")
    assert told[4] == f"the result and its report are in {tmp_path}"
    assert told[5] == f"to continue, add to the same call: folder={str(tmp_path)!r}, resume=True"
    tune(MODEL_AND_DATA, device="cpu", folder=f"{tmp_path}/not/there", listener=lambda progress: None)
    assert (tmp_path / "not/there").is_dir()
    assert capsys.readouterr().err == ""
