"""`find_batch_size` as people call it: objects of a script, a prompt or a notebook, measured in another process."""

import os
import platform
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
import torch
import torch._dynamo.utils  # makes the folder of its cache when it is imported, not within a test
from torch import nn
from torch.utils.data import DataLoader, Dataset
from training_workloads import Images, LanguageModel, Masks, Text, TinyUNet

from loadtune import DeviceError, Job, LoadtuneError, UsageError, WorkloadError, find_batch_size

ROOT = Path(__file__).resolve().parents[2]


class Classifier(nn.Module):
    """Refuses what is not (B, 3, 8, 8); batch normalisation refuses a batch of 1."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, images):
        return self.head(self.norm(self.features(images).mean((2, 3))))


class Autoencoder(nn.Sequential):
    """Returns numbers of the shape of its input."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))


class Regression(Dataset):
    """What cross entropy cannot take: targets that are numbers."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(4) * index, torch.ones(2) * index


class Damaged(Dataset):
    """Only the first 20 samples can be read."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index >= 20:
            raise OSError("damaged file")
        return torch.rand(4), index % 2


@pytest.fixture(autouse=True)
def importable_workloads(monkeypatch):
    """What a script beside them would see."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}{os.pathsep}{ROOT}")


@pytest.fixture(autouse=True)
def leaves_nothing_behind(short_tmp):
    """No process, no file, no CUDA context."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before
    assert list(short_tmp.iterdir()) == []
    assert not torch.cuda.is_initialized()


def find(*what, **options):
    return find_batch_size(*what, **{"device": "cpu", "max_batch_size": 8} | options)


def of_rows(model, batch):
    return nn.functional.cross_entropy(model(batch["values"]), batch["label"])


def of_pairs(model, batch):
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes)


def time_first(rows):
    return torch.stack([row[:2] for row in rows], 1)


def of_time_first(model, batch):
    assert len(batch) == 2
    return model(batch).square().mean()


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-4)


ROWS = [{"values": torch.rand(4), "label": torch.tensor(row % 2)} for row in range(32)]
FIRST = torch.utils.data.SubsetRandomSampler(range(20))
FOUND = {
    "rows and a loss of model and batch": (
        (nn.Linear(4, 2), DataLoader(ROWS, batch_size=2, shuffle=True)), {"loss": of_rows}
    ),
    "samples along the second dimension": (
        (nn.Linear(4, 2), DataLoader([torch.rand(3, 4) for _ in range(32)], batch_size=2, collate_fn=time_first)),
        {"loss": of_time_first},
    ),
    "random labels": ((nn.Linear(4, 3), (4,)), {"loss": of_pairs}),
    "a loss with weights": ((Classifier(), (3, 8, 8)), {"loss": nn.CrossEntropyLoss(weight=torch.ones(5))}),
    "a loss and an optimizer": ((nn.Linear(4, 2), Regression()), {"loss": nn.MSELoss(), "optimizer": adam}),
    "names": (
        ("training_workloads:Linear", "training_workloads:Images"), {"precision": "bf16", "optimizer": "adamw"}
    ),
    "masks": ((TinyUNet(), Masks), {}),
    "tokens": ((LanguageModel(), Text()), {}),
    "a name of torchvision": (("squeezenet1_1", [3, 64, 64]), {"max_batch_size": 2}),
    "a dataset": ((Classifier, torch.utils.data.Subset(Images(), range(20))), {"max_batch_size": None}),
    "a list and a lambda": (
        (lambda: nn.Linear(4, 2), [(torch.zeros(4), 0), (torch.ones(4), 1)]), {"max_batch_size": None}
    ),
    "a sampler, and what it leaves out is not read": (
        (nn.Linear(4, 2), DataLoader(Damaged(), 4, sampler=FIRST, drop_last=True)), {"max_batch_size": None}
    ),
}  # fmt: skip
IN_DATASET = {"a dataset": 20, "a list and a lambda": 2, "a sampler, and what it leaves out is not read": 20}


@pytest.mark.parametrize("name", FOUND)
def test_what_people_have_is_trained_in_any_thread(in_thread, name):
    what, options = FOUND[name]
    found = []
    thread = threading.Thread(target=lambda: found.append(find(*what, **options)))
    thread.start()
    thread.join()
    (ceiling,) = found
    expected = (IN_DATASET[name], "dataset") if name in IN_DATASET else (options.get("max_batch_size", 8), "cap")
    assert (ceiling.batch_size, ceiling.limit) == expected
    assert ceiling.precision == options.get("precision", "fp32")


def test_a_job_holds_all_parts(in_thread):
    rows = DataLoader([(torch.rand(4), torch.rand(2)) for _ in range(32)], batch_size=2)
    job = Job(loader=rows, model=nn.Linear(4, 2), loss=nn.MSELoss(), optimizer="adamw", precision="bf16")
    ceiling = find(job)
    assert (ceiling.batch_size, ceiling.limit, ceiling.precision) == (8, "cap", "bf16")
    assert find(job, precision="fp32").precision == "fp32"

    def make_step(device):
        return lambda batch: None

    assert find(Job(loader=rows, step=make_step)).precision == "own"


def test_a_notebooks_cell_and_a_shape():
    cell = textwrap.dedent(
        """
        class Cell(Classifier):
            def forward(self, images):
                return super().forward(images) * scale
        scale = 2.0
        """
    )
    names = {"__name__": "__main__", "Classifier": Classifier}
    exec(cell, names)
    model = names["Cell"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ceiling = find(model, (3, 8, 8))
    assert (ceiling.batch_size, ceiling.limit, ceiling.precision) == (8, "cap", "fp32")
    assert min(probe.batch_size for probe in ceiling.probes) >= 2
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


SCRIPT = """
import psutil, torch, loadtune
from torch import nn
from beside import make_samples

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, WIDTH)

    def forward(self, inputs):
        return self.layer(inputs)

WIDTH = 3
ceiling = loadtune.find_batch_size(Net(), make_samples(), device="cpu", max_batch_size=8)
print("batch", ceiling.safe_batch_size)
print("left", psutil.Process().children(recursive=True), torch.cuda.is_initialized())
"""


BESIDE = """
import torch

def make_samples():
    return [(torch.zeros(4), 1)] * 9
"""


def test_a_script_without_a_main_guard(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    (tmp_path / "project" / "beside.py").write_text(BESIDE)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "project" / "train.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout == "batch 8\nleft [] False\n", ended.stderr


def test_a_module_that_calls_it_while_imported_is_stopped(tmp_path, monkeypatch):
    source = (
        "import loadtune\nfrom training_workloads import Linear\nloadtune.find_batch_size('calls:Linear', (3, 8, 8))\n"
    )
    (tmp_path / "calls.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    with pytest.raises(WorkloadError, match="called again in the training process"):
        find("calls:Linear", (3, 8, 8))


def test_an_interrupt_leaves_nothing_behind(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("loadtune.training.client.TrainingClient._await", interrupted)  # of the first request
    with pytest.raises(KeyboardInterrupt):
        find(nn.Linear(4, 2), (4,))


class Unpicklable(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.lock = threading.Lock()


LINEAR = nn.Linear(4, 2)
REFUSED_AT_ONCE = {
    "precision off": ((LINEAR, (4,)), {"precision": "off"}, UsageError, ["'off'", "fp32, fp16 or bf16"]),
    "cap 0": ((LINEAR, (4,)), {"max_batch_size": 0}, UsageError, ["max_batch_size is 0", "at least 1"]),
    "shape with 0": ((LINEAR, (3, 0)), {}, UsageError, ["(3, 0)", "at least 1", "(3, 224, 224)"]),
    "no model": ((7, (4,)), {}, UsageError, ["model is 7", "torch.nn.Module"]),
    "no such device": ((LINEAR, (4,)), {"device": "cuda:99"}, DeviceError, ["device is 'cuda:99'", "cpu"]),
    "a lock in the model": (
        (Unpicklable(), (4,)), {}, WorkloadError, ["model (Unpicklable)", "lock", "pkg.mod:factory"]
    ),
    "a lock in the loss": (
        (LINEAR, (4,)), {"loss": Unpicklable().lock.acquire}, WorkloadError, ["The loss", "lock", "open files"]
    ),
}  # fmt: skip


def refused(arguments, options, kind, words):
    with pytest.raises(LoadtuneError) as raised:
        find(*arguments, **options)
    assert type(raised.value) is kind
    assert all(word in str(raised.value) for word in words), str(raised.value)
    return raised.value


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
def test_what_is_refused_before_a_process_starts(name, monkeypatch):
    platform.platform()  # Python asks `uname` once, by a process of its own
    monkeypatch.setattr(subprocess, "Popen", None)
    assert refused(*REFUSED_AT_ONCE[name])


def raises(*_):
    raise ValueError("mine to mend")


REFUSED_BY_THE_PROCESS = {
    "cap below the model's": ((Classifier(), (3, 8, 8)), {"max_batch_size": 1}, UsageError, ["at least 2 samples"]),
    "dataset below the model's": ((Classifier(), [(torch.zeros(3, 8, 8), 0)]), {}, UsageError, ["larger dataset"]),
    "a dense loss of a shape": (
        (Autoencoder(), (3, 8, 8)), {"loss": nn.MSELoss()}, WorkloadError, ["pass a dataset instead of the shape"]
    ),
    "other shape": ((Classifier(), (1, 8, 8)), {}, WorkloadError, ["float32 tensor (1, 8, 8)", "the shape or the mo"]),
    "loss raises": ((LINEAR, (4,)), {"loss": raises}, WorkloadError, ["ValueError: mine to mend"]),
    "optimizer raises": ((LINEAR, (4,)), {"optimizer": raises}, WorkloadError, ["ValueError: mine to mend"]),
    "no scalar": ((LINEAR, (4,)), {"loss": lambda outputs, _: outputs}, WorkloadError, ["(2, 2)", "take its mean"]),
    "numbers without a loss": ((LINEAR, Regression()), {}, WorkloadError, ["float32 tensor (2,)", "loss=fn"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BY_THE_PROCESS)
def test_what_only_the_process_can_tell(in_thread, name):
    error = refused(*REFUSED_BY_THE_PROCESS[name])
    if name.endswith("raises"):
        trace = error.user_traceback
        assert "in raises" in trace
        assert "loadtune/workload" not in trace
        assert "loadtune/training" not in trace


def test_what_cannot_be_loaded_there_says_where_from(tmp_path, monkeypatch):
    (tmp_path / "gone.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gone

    (tmp_path / "gone.py").unlink()
    with pytest.raises(WorkloadError, match=r"No module named 'gone'.*importable there"):
        find(gone.Net(4, 2), (4,))
