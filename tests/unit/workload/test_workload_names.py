"""Names and import paths become datasets and models, or errors that say what to do."""

import sys

import bench_workloads
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import WorkloadSpec
from loadtune.workload import build_workload
from loadtune.workload.datasets import training_transform
from loadtune.workload.factories import call_factory
from loadtune.workload.live import LiveParts, pack_parts
from loadtune.workload.models import model_needs
from loadtune.workload.tasks import class_loss


def spec(dataset="bench_workloads:Images", model="bench_workloads:Linear", **more):
    return WorkloadSpec(dataset=dataset, model=model, **more)


def refused(**names):
    with pytest.raises(WorkloadError) as raised:
        build_workload(spec(**names))
    return raised.value


def test_import_paths_are_called():
    workload = build_workload(spec())
    assert workload.epoch.num_draws == 512
    assert isinstance(workload.model, nn.Module)


def test_fake_data_has_the_models_own_size_and_never_runs_out():
    workload = build_workload(spec(dataset="FakeData", model="squeezenet1_1", num_classes=7))
    image, label = workload.dataset[0]
    assert image.shape == (3, 224, 224)
    assert 0 <= label < 7
    assert workload.epoch.num_draws > 1_000_000
    assert workload.num_classes == 7


def test_image_size_is_the_users_where_given():
    workload = build_workload(spec(dataset="FakeData", model="squeezenet1_1", image_size=64))
    assert workload.dataset[0][0].shape == (3, 64, 64)
    assert workload.num_classes == 1000


@pytest.mark.parametrize(
    ("model", "family", "size"),
    [
        ("resnet50", "classification", 224),
        ("inception_v3", "classification", 299),
        ("vit_h_14", "classification", 224),
        ("fcn_resnet50", "segmentation", 520),
    ],
)
def test_a_models_family_and_size_are_known_before_it_is_built(model, family, size):
    needs = model_needs(spec(model=model))
    assert (needs.family, needs.image_size) == (family, size)


def test_every_model_of_torchvision_has_a_family_and_a_size():
    for name in torchvision.models.list_models():
        if "rcnn_" not in name and not name.startswith(("raft_", "retinanet_", "ssd", "fcos_")):
            assert 64 <= model_needs(spec(model=name)).image_size <= 1024


def test_a_model_of_timms_is_built_with_images_of_its_own_size():
    pytest.importorskip("timm")
    workload = build_workload(spec(dataset="FakeData", model="timm:test_vit", num_classes=7))
    image, _ = workload.dataset[0]
    assert image.shape == (3, 160, 160)
    assert workload.model(image[None]).shape == (1, 7)


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
    assert call_factory("jobs/trained_job.py:Made.make", "model") == "jobs"
    assert call_factory("jobs/../jobs/trained_job.py:Made.make", "model") == "jobs", "the same file"
    with pytest.raises(WorkloadError, match="another module is called 'trained_job'"):
        call_factory("trained_job.py:Made.make", "model")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"model": "resnet5o"}, ["resnet50", "list_models"]),
        ({"dataset": "Cifar10"}, ["CIFAR10", "torchvision.datasets"]),
        ({"dataset": "nowhere:make"}, ["no module 'nowhere'", "PYTHONPATH"]),
        ({"dataset": "bench_workloads:Image"}, ["no 'Image'", "Images"]),
        ({"dataset": "bench_workloads:"}, ["pkg.mod:name"]),
        ({"dataset": "bench_workloads:needs_arguments"}, ["is a int", "function or class"]),
        ({"dataset": "bench_workloads:no_dataset"}, ["a dict", "map-style"]),
        ({"dataset": "bench_workloads:Empty"}, ["is empty"]),
        ({"dataset": "bench_workloads:raising_factory"}, ["OSError: no such disk"]),
        ({"model": "bench_workloads:Images"}, ["Images", "torch.nn.Module"]),
        (
            {"model": "bench_workloads:LitClassifier"},
            ["LitClassifier is a LightningModule", "training_step", "configure_optimizers", "from_lightning"],
        ),
        ({"model": "bench_workloads:frozen"}, ["no trainable parameter"]),
        ({"model": "raft_small"}, ["no loss", "--compute-loss"]),
        ({"model": "ssd300_vgg16"}, ["no loss", "--compute-loss"]),
        ({"dataset": "CIFAR10"}, ["--data-root"]),
        ({"dataset": "Kinetics", "data_root": "/nowhere"}, ["frames_per_clip", "factory"]),
        ({"dataset": "ImageFolder", "data_root": "/nowhere"}, ["/nowhere", "--data-root"]),
    ],
)
def test_what_cannot_be_used_is_said_with_what_can(names, words):
    message = str(refused(**names))
    assert all(word in message for word in words), message


def test_a_lightning_module_is_refused_as_an_object_too():
    objects = pack_parts(LiveParts(model=bench_workloads.LitClassifier()))
    with pytest.raises(WorkloadError, match="is a LightningModule"):
        build_workload(spec(), objects)


def test_a_raising_factory_shows_its_own_traceback_alone():
    trace = refused(dataset="bench_workloads:raising_factory").user_traceback
    assert "raising_factory" in trace
    assert "call_factory" not in trace


def test_a_folder_of_images_is_cropped_to_rgb_tensors(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        Image.new("L", (40, 30)).save(tmp_path / "train" / label / "0.png")
    workload = build_workload(spec(dataset="ImageFolder", data_root=str(tmp_path), image_size=16))
    assert workload.num_classes == 2
    assert workload.epoch.num_draws == 2
    assert workload.dataset[1][0].shape == (3, 16, 16)


def test_grayscale_becomes_three_channels():
    assert training_transform(8)(Image.new("L", (28, 28))).shape == (3, 8, 8)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_each_optimizer_moves_the_weights(optimizer, fused):
    from loadtune.workload import make_optimizer

    model = nn.Linear(2, 3)
    before = model.weight.detach().clone()
    chosen = make_optimizer(optimizer, model, fused=fused)
    chosen.param_groups[0]["lr"] = 0.1  # its own is too small to see
    class_loss(model, torch.ones(4, 2), torch.zeros(4, dtype=torch.long)).backward()
    chosen.step()
    assert not torch.equal(before, model.weight)
