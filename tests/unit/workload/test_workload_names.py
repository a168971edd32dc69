"""Names and import paths become datasets and models, or errors that say what to do."""

import struct
import subprocess
import sys

import pytest
import torchvision
from PIL import Image

from loadtune.changes.vision import find_transforms
from loadtune.errors import WorkloadError
from loadtune.records.config import WorkloadSpec
from loadtune.workload.build import build_workload
from loadtune.workload.datasets import model_needs
from loadtune.workload.user_code import find


def spec(dataset="training_workloads:Images", model="training_workloads:Linear", **more):
    return WorkloadSpec(dataset=dataset, model=model, **more)


def refused(**names):
    with pytest.raises(WorkloadError) as raised:
        build_workload(spec(**names))
    return raised.value


def test_fake_data_has_the_models_own_size_and_never_runs_out():
    workload = build_workload(spec(dataset="FakeData", model="squeezenet1_1", num_classes=7))
    image, label = workload.dataset[0]
    assert image.shape == (3, 224, 224)
    assert 0 <= label < 7
    assert workload.epoch.num_draws > 1_000_000
    assert workload.num_classes == 7


def test_a_models_classes_and_size_are_known_before_it_is_built():
    for model, num_classes, size in (("inception_v3", 1000, 299), ("vit_h_14", 1000, 224), ("fcn_resnet50", 21, 520)):
        needs = model_needs(spec(model=model), {})
        assert (needs.num_classes, needs.image_size) == (num_classes, size)
    for name in torchvision.models.list_models():
        if "rcnn_" not in name and not name.startswith(("raft_", "retinanet_", "ssd", "fcos_")):
            assert 64 <= model_needs(spec(model=name), {}).image_size <= 1024


def test_a_model_of_timms_is_built_with_images_of_its_own_size():
    pytest.importorskip("timm")
    workload = build_workload(spec(dataset="FakeData", model="timm:test_vit", num_classes=7))
    image, _ = workload.dataset[0]
    assert image.shape == (3, 160, 160)
    assert workload.model(image[None]).shape == (1, 7)
    assert "Did you mean resnet18" in str(refused(model="timm:resnet18x"))


def test_a_name_that_a_file_does_not_have_is_told_with_the_file_and_the_names_it_has(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "train_of_mine.py"
    file.write_text("import os\nseed = 1\ndef make_dataset(): ...\ndef _made(): ...\nclass Net: ...\n")
    for path in ("train_of_mine:nope", f"{file}:nope"):
        told = f"No dataset {path}: {file} has no 'nope'; it has Net, make_dataset."
        assert str(refused(dataset=path)) == told


@pytest.mark.parametrize(
    ("names", "package", "said"),
    [
        ({"model": "timm:resnet18"}, "timm", ["pip install timm"]),
        ({"model": "resnet18"}, "torchvision", ["pip install '.[vision]'", "--model FILE.py:factory"]),
        ({"dataset": "CIFAR10"}, "torchvision", ["pip install '.[vision]'", "--dataset FILE.py:factory"]),
    ],
)
def test_a_name_of_a_package_that_is_not_there_says_what_to_install(names, package, said, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    error = str(refused(**names))
    assert all(words in error for words in said), error


def test_own_dataset_and_model_are_built_and_examined_without_torchvision():
    """The parts of the training process, in one that has none."""
    code = """
import sys; sys.modules["torchvision"] = None
import loadtune.training.session, loadtune.footprint.estimate
from loadtune.changes.way import Way
from loadtune.changes import CHANGES
from loadtune.records.loading import NotApplicableError
from loadtune.records.config import WorkloadSpec
from loadtune.workload.build import build_workload
workload = build_workload(WorkloadSpec(dataset="training_workloads:Images", model="training_workloads:Linear"))
try:
    CHANGES["batched_fetch"].apply(Way(loader=workload.loader, indices=workload.epoch.indices))
except NotApplicableError as refused:
    print(refused)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="tests", timeout=60)
    assert "cannot be indexed with a list" in ran.stdout, ran.stderr


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Work in a folder of two files of one name, one of them in `jobs`; imports are undone."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "trained_job.py").write_text("class Made:\n    make = staticmethod(lambda: 'jobs')\n")
    (tmp_path / "trained_job.py").write_text("class Made:\n    make = staticmethod(lambda: 'here')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere", *sys.path])
    yield tmp_path
    sys.modules.pop("trained_job", None)


@pytest.mark.parametrize("before", [[], ["."], [".", "jobs"]])
def test_the_file_that_was_named_is_run_wherever_imports_are_looked_for(in_folder, before):
    sys.path[:0] = [str(in_folder / folder) for folder in before]
    assert find("jobs/trained_job.py:Made.make", "model")() == "jobs"
    assert find("jobs/../jobs/trained_job.py:Made.make", "model")() == "jobs", "the same file"
    with pytest.raises(WorkloadError, match="another module is called 'trained_job'"):
        find("trained_job.py:Made.make", "model")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"dataset": "training_workloads:"}, ["pkg.mod:name"]),
        ({"dataset": "training_workloads:needs_arguments"}, ["is of type int", "map-style"]),
        (
            {"model": "training_workloads:LitClassifier"},
            ["LitClassifier is a LightningModule", "training_step", "configure_optimizers", "run -- python"],
        ),
        ({"model": "training_workloads:frozen"}, ["no trainable parameter"]),
        ({"model": "raft_small"}, ["no loss", "--loss"]),
        ({"dataset": "Kinetics", "data_root": "."}, ["frames_per_clip", "factory"]),
    ],
)
def test_what_cannot_be_used_is_said_with_what_can(names, words):
    message = str(refused(**names))
    assert all(word in message for word in words), message


def test_a_module_that_parses_its_command_line_is_told_where_to_put_that(in_folder):
    (in_folder / "parses_its_line.py").write_text("import sys\nsys.exit(2)\n")
    with pytest.raises(WorkloadError, match='under `if __name__ == "__main__":`'):
        find("parses_its_line.py:Made", "model")


LOADERS = """
from torch.utils.data import DataLoader, TensorDataset
import torch
made = DataLoader(TensorDataset(torch.zeros(9, 4), torch.zeros(9, dtype=torch.long)), batch_size=3)

class PrefetchLoader:
    loader = made
"""


def test_a_loader_may_be_named_itself_and_one_that_wraps_it_is_told(in_folder):
    (in_folder / "loaders_of_mine.py").write_text(LOADERS)
    workload = build_workload(spec(loader="loaders_of_mine.py:made"))
    assert (workload.loader.batch_size, workload.epoch.num_draws) == (3, 9)
    message = str(refused(loader="loaders_of_mine.py:PrefetchLoader"))
    assert "is of type PrefetchLoader" in message
    assert "use_prefetcher=False" in message


def write_mnist(folder):
    """Two digits, in the files that torchvision reads."""
    (folder / "MNIST" / "raw").mkdir(parents=True)
    for name in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, 2, 28, 28) + bytes(2 * 28 * 28)
        (folder / "MNIST" / "raw" / f"{name}-images-idx3-ubyte").write_bytes(images)
        (folder / "MNIST" / "raw" / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 2) + bytes(2))


def test_mnist_keeps_one_channel_for_a_model_of_ones_own(tmp_path):
    write_mnist(tmp_path)
    for more, shape in (
        ({}, (1, 28, 28)),
        ({"image_size": 16}, (1, 16, 16)),
        ({"model": "squeezenet1_1"}, (3, 224, 224)),
    ):
        workload = build_workload(spec(dataset="MNIST", data_root=str(tmp_path), **more))
        assert workload.dataset[0][0].shape == shape
        assert "ToTensor" in str([each.steps for each in find_transforms(workload.dataset)])


def test_a_folder_of_images_is_cropped_to_rgb_tensors(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        Image.new("L", (40, 30)).save(tmp_path / "train" / label / "0.png")
    workload = build_workload(spec(dataset="ImageFolder", data_root=str(tmp_path), image_size=16))
    assert workload.num_classes == 2
    assert workload.epoch.num_draws == 2
    assert workload.dataset[1][0].shape == (3, 16, 16)
