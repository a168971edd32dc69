"""`find_batch_size` as people call it: objects of a script, a prompt or a notebook, measured in another process."""

import functools
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from bench_workloads import Images, LanguageModel, Masks, Text, TinyUNet
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, Dataset

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


class Regression(Dataset):
    """What cross entropy cannot take: targets that are numbers."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.ones(4) * index, torch.ones(2) * index


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
    return find_batch_size(*what, **{"device": "cpu", "max_batch_size": 8, "num_steps": 2} | options)


def test_a_loader_and_a_loss_of_model_and_batch(in_thread):
    rows = [{"values": torch.rand(4), "label": torch.tensor(row % 2)} for row in range(32)]

    def compute_loss(model, batch):
        return nn.functional.cross_entropy(model(batch["values"]), batch["label"])

    ceiling = find(nn.Linear(4, 2), DataLoader(rows, batch_size=2, shuffle=True), loss=compute_loss)
    assert (ceiling.batch_size, ceiling.limit) == (8, "cap")


def test_a_job_holds_all_parts(in_thread):
    rows = DataLoader([(torch.rand(4), torch.rand(2)) for _ in range(32)], batch_size=2)
    job = Job(loader=rows, model=nn.Linear(4, 2), loss=nn.MSELoss(), optimizer="adamw", precision="bf16")
    ceiling = find(job)
    assert (ceiling.batch_size, ceiling.limit, ceiling.precision) == (8, "cap", "bf16")
    assert find(job, precision="fp32").precision == "fp32"

    def make_step(device):
        return lambda batch: None

    assert find(Job(loader=rows, step=make_step)).precision == "own"


def test_the_dimension_of_samples_can_be_named(in_thread):
    def time_first(rows):
        return torch.stack([row[:2] for row in rows], 1)

    def compute_loss(model, batch):
        assert len(batch) == 2
        return model(batch).square().mean()

    loader = DataLoader([torch.rand(3, 4) for _ in range(32)], batch_size=2, collate_fn=time_first)
    assert find(nn.Linear(4, 2), loader, loss=compute_loss, batch_dim=1).batch_size == 8


@pytest.mark.parametrize("calls", ["model(inputs)", "model(inputs=inputs)"])
def test_a_shape_and_a_loss_of_model_and_batch_get_classes_that_the_model_has(in_thread, calls):
    class Keyword(nn.Linear):
        def forward(self, *args, inputs=None):
            assert not args
            return super().forward(inputs)

    def compute_loss(model, batch):
        inputs, classes = batch
        outputs = model(inputs) if calls == "model(inputs)" else model(inputs=inputs)
        return nn.functional.cross_entropy(outputs, classes)

    model = nn.Linear(4, 3) if calls == "model(inputs)" else Keyword(4, 3)
    assert find(model, (4,), loss=compute_loss).batch_size == 8


def test_a_dataset_bounds_the_batch_where_nothing_else_does(in_thread):
    ceiling = find(Classifier, torch.utils.data.Subset(Images(), range(20)), max_batch_size=None)
    assert (ceiling.batch_size, ceiling.limit) == (20, "dataset")


def test_names_need_no_objects(in_thread):
    ceiling = find("bench_workloads:Linear", "bench_workloads:Images", precision="bf16", optimizer="adamw", fused=True)
    assert (ceiling.batch_size, ceiling.precision) == (8, "bf16")


@pytest.mark.parametrize("wanted", [False, True])
def test_a_model_is_compiled_where_that_is_asked_for(in_thread, monkeypatch, wanted):
    """By dynamo alone: what a C++ compiler makes of it is for the training process."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    ceiling = find("bench_workloads:Linear", "bench_workloads:Images", compile=wanted, max_batch_size=2)
    assert (ceiling.batch_size, ceiling.limit) == (2, "cap")
    assert all(probe.fits for probe in ceiling.probes)
    assert (counters["stats"]["unique_graphs"] > before) == wanted


def test_a_torchvision_name_is_built_for_the_shape(in_thread):
    assert find("squeezenet1_1", [3, np.int64(64), 64], max_batch_size=2, num_classes=3).batch_size == 2


@pytest.mark.parametrize("data", [(3, 8, 8), Masks(), Masks], ids=["shape", "dataset", "factory"])
def test_a_class_for_each_pixel(in_thread, data):
    assert find(TinyUNet(), data, channels_last=True).batch_size == 8


def test_a_segmentation_model_of_torchvision_as_an_object(in_thread):
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    ceiling = find(model, (3, 32, 32), max_batch_size=2)
    assert ceiling.batch_size == 2, ceiling.probes


def test_a_language_model_over_tokens(in_thread):
    assert find(LanguageModel(), Text()).batch_size == 8


def test_a_loss_and_an_optimizer_of_ones_own(in_thread):
    model, target_scale = nn.Linear(4, 2), 0.5

    def loss(outputs, targets):
        assert targets.dtype == torch.float32
        return ((outputs - target_scale * targets) ** 2).mean()

    ceiling = find(model, Regression(), loss=loss, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-4))
    assert ceiling.batch_size == 8


def test_a_loss_with_weights_over_random_labels(in_thread):
    assert find(Classifier(), (3, 8, 8), loss=nn.CrossEntropyLoss(weight=torch.ones(5))).batch_size == 8


class Autoencoder(nn.Sequential):
    """Returns numbers of the shape of its input."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))


@pytest.mark.parametrize(
    ("model", "input_shape", "output_shape"),
    [(Autoencoder(), (3, 8, 8), [3, np.int64(8), 8]), (nn.Linear(4, 2), (4,), (2,)), (nn.Linear(4, 1), (4,), ())],
)
def test_a_shape_and_a_loss_over_dense_targets(in_thread, model, input_shape, output_shape):
    def loss(outputs, targets):
        assert (targets.dtype, targets.shape) == (torch.float32, (len(outputs), *output_shape))
        return nn.functional.mse_loss(outputs, targets.view_as(outputs))

    assert find(model, input_shape, loss=loss, output_shape=output_shape).batch_size == 8


def test_a_list_of_samples_is_a_dataset_and_a_lambda_makes_a_model_in_any_thread(in_thread):
    found, samples = [], [(torch.zeros(4), 0), (torch.ones(4), 1)]
    thread = threading.Thread(target=lambda: found.append(find(lambda: nn.Linear(4, 2), samples, max_batch_size=None)))
    thread.start()
    thread.join()
    assert (found[0].batch_size, found[0].limit) == (2, "dataset")


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
        "import loadtune\nfrom bench_workloads import Linear\nloadtune.find_batch_size('calls:Linear', (3, 8, 8))\n"
    )
    (tmp_path / "calls.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    with pytest.raises(WorkloadError, match="called again in the training process"):
        find("calls:Linear", (3, 8, 8))


def test_an_interrupt_leaves_nothing_behind(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("loadtune.bench.client.BenchClient._await", interrupted)  # of the first request
    with pytest.raises(KeyboardInterrupt):
        find(nn.Linear(4, 2), (4,))


class Unpicklable(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.lock = threading.Lock()


LINEAR = nn.Linear(4, 2)
REFUSED_AT_ONCE = {
    "no such precision": ((LINEAR, (4,)), {"precision": "fp8"}, UsageError, ["'fp8'", "fp32, fp16 or bf16"]),
    "precision off": ((LINEAR, (4,)), {"precision": "off"}, UsageError, ["'off'", "fp32, fp16 or bf16"]),
    "cap 0": ((LINEAR, (4,)), {"max_batch_size": 0}, UsageError, ["max_batch_size is 0", "at least 1"]),
    "cap no number": ((LINEAR, (4,)), {"max_batch_size": 2.5}, UsageError, ["max_batch_size is 2.5", "whole"]),
    "no steps": ((LINEAR, (4,)), {"num_steps": 0}, UsageError, ["num_steps is 0"]),
    "no classes": ((LINEAR, (4,)), {"num_classes": 0}, UsageError, ["num_classes is 0"]),
    "shape with 0": ((LINEAR, (3, 0)), {}, UsageError, ["(3, 0)", "at least 1", "(3, 224, 224)"]),
    "shape of words": ((LINEAR, ("3", 4)), {}, UsageError, ["('3', 4)", "whole numbers"]),
    "empty shape": ((LINEAR, ()), {}, UsageError, ["input shape", "(3, 224, 224)"]),
    "no data": ((LINEAR, None), {}, UsageError, ["NoneType", "map-style"]),
    "no model": ((7, (4,)), {}, UsageError, ["the model is a int", "torch.nn.Module"]),
    "no loss": ((LINEAR, (4,)), {"loss": "mse"}, UsageError, ["loss is 'mse'", "train.py:loss"]),
    "unknown optimizer": ((LINEAR, (4,)), {"optimizer": "adam"}, UsageError, ["optimizer is 'adam'", "adamw"]),
    "made optimizer": (
        (LINEAR, (4,)), {"optimizer": torch.optim.SGD(LINEAR.parameters())}, UsageError, ["a SGD", "lambda"]
    ),
    "fused of one's own": ((LINEAR, (4,)), {"optimizer": torch.optim.SGD, "fused": True}, UsageError, ["fused"]),
    "fused fp16": ((LINEAR, (4,)), {"precision": "fp16", "fused": True}, UsageError, ["fused", "adamw or bf16"]),
    "no such device": ((LINEAR, (4,)), {"device": "cuda:99"}, DeviceError, ["device is 'cuda:99'", "cpu"]),
    "output shape with 0": (
        (LINEAR, (4,)), {"output_shape": (0,), "loss": nn.MSELoss()}, UsageError, ["output_shape is (0,)", "(3, 224"]
    ),
    "output shape a number": (
        (LINEAR, (4,)), {"output_shape": 2, "loss": nn.MSELoss()}, UsageError, ["output_shape is 2", "a tuple"]
    ),
    "output shape of a dataset": (
        (LINEAR, Regression()), {"output_shape": (2,), "loss": nn.MSELoss()}, UsageError, ["targets of its own"]
    ),
    "output shape without a loss": (
        (LINEAR, (4,)), {"output_shape": (2,)}, UsageError, ["no loss was given", "torch.nn.MSELoss()"]
    ),
    "a job and more": ((Job(loader=[], model=LINEAR), (4,)), {}, UsageError, ["a Job and also input_shape_or_dataset"]),
    "a job without data": ((Job(model=LINEAR),), {}, UsageError, ["find_batch_size was given no data"]),
    "a step's precision": (
        (Job(loader=DataLoader([1]), step=print),), {"precision": "bf16"}, UsageError, ["already contains precision"]
    ),
    "a dimension below 0": ((LINEAR, (4,)), {"batch_dim": -1}, UsageError, ["batch_dim is -1"]),
    "a collate function for a shape": ((LINEAR, (4,)), {"collate": list}, UsageError, ["collate is given"]),
    "no device at all": ((LINEAR, (4,)), {"device": "tpu"}, DeviceError, ["device is 'tpu'", "cpu"]),
    "a lock in the model": (
        (Unpicklable(), (4,)), {}, WorkloadError, ["model (Unpicklable)", "lock", "pkg.mod:factory"]
    ),
    "a lock in the loss": (
        (LINEAR, (4,)), {"loss": Unpicklable().lock.acquire}, WorkloadError, ["The loss", "lock", "open files"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
def test_what_is_refused_before_a_process_starts(name, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    arguments, options, kind, words = REFUSED_AT_ONCE[name]
    with pytest.raises(LoadtuneError) as raised:
        find(*arguments, **options)
    assert type(raised.value) is kind
    assert all(word in str(raised.value) for word in words), str(raised.value)


def raises(*_):
    raise ValueError("mine to mend")


REFUSED_BY_THE_PROCESS = {
    "precision of a GPU": ((LINEAR, (4,)), {"precision": "fp16"}, UsageError, ["'fp16'", "fp32, bf16"]),
    "cap below the model's": ((Classifier(), (3, 8, 8)), {"max_batch_size": 1}, UsageError, ["is 1", "2 samples"]),
    "dataset below the model's": ((Classifier(), [(torch.zeros(3, 8, 8), 0)]), {}, WorkloadError, ["has 1 sample"]),
    "empty dataset": ((LINEAR, []), {}, WorkloadError, ["list is empty"]),
    "no module": ((lambda: "resnet50", (4,)), {}, WorkloadError, ["returned a str", "torch.nn.Module"]),
    "other output shape": (
        (Autoencoder(), (3, 8, 8)),
        {"output_shape": (3, 4, 4), "loss": nn.MSELoss()},
        WorkloadError,
        ["float32 tensor (3, 4, 4)", "output_shape, the loss or the model"],
    ),
    "dense loss without an output shape": (
        (Autoencoder(), (3, 8, 8)), {"loss": nn.MSELoss()}, WorkloadError, ["give output_shape"]
    ),
    "other shape": ((Classifier(), (1, 8, 8)), {}, WorkloadError, ["float32 tensor (1, 8, 8)", "the shape or the mo"]),
    "factory raises": ((raises, (4,)), {}, WorkloadError, ["ValueError: mine to mend"]),
    "loss raises": ((LINEAR, (4,)), {"loss": raises}, WorkloadError, ["ValueError: mine to mend"]),
    "optimizer raises": ((LINEAR, (4,)), {"optimizer": raises}, WorkloadError, ["ValueError: mine to mend"]),
    "no scalar": ((LINEAR, (4,)), {"loss": lambda outputs, _: outputs}, WorkloadError, ["(2, 2)", "take its mean"]),
    "numbers without a loss": ((LINEAR, Regression()), {}, WorkloadError, ["float32 tensor (2,)", "loss=fn"]),
    "label above the classes": ((LINEAR, [(torch.zeros(4), 2)]), {}, WorkloadError, ["target is 2", "2 classes"]),
    "data by name that needs a folder": ((LINEAR, "CIFAR10"), {}, WorkloadError, ["data_root"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BY_THE_PROCESS)
def test_what_only_the_process_can_tell(in_thread, name):
    arguments, options, kind, words = REFUSED_BY_THE_PROCESS[name]
    with pytest.raises(LoadtuneError) as raised:
        find(*arguments, **options)
    assert type(raised.value) is kind
    assert all(word in str(raised.value) for word in words), str(raised.value)
    trace = getattr(raised.value, "user_traceback", None)
    if name.endswith("raises"):
        assert "in raises" in trace
        assert "loadtune/workload" not in trace
        assert "loadtune/bench" not in trace


def test_what_cannot_be_loaded_there_says_where_from(tmp_path, monkeypatch):
    (tmp_path / "gone.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gone

    (tmp_path / "gone.py").unlink()
    with pytest.raises(WorkloadError, match=r"No module named 'gone'.*importable there"):
        find(gone.Net(4, 2), (4,))


def test_a_sampler_bounds_the_batch_and_what_it_leaves_out_is_not_read(in_thread):
    class Damaged(Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            if index >= 20:
                raise OSError("damaged file")
            return torch.rand(4), index % 2

    loader = DataLoader(Damaged(), 4, sampler=torch.utils.data.SubsetRandomSampler(range(20)), drop_last=True)
    ceiling = find(LINEAR, loader, max_batch_size=None)
    assert (ceiling.batch_size, ceiling.limit) == (20, "dataset")
