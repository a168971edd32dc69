"""Names and import paths become datasets and models, or errors that say what to do."""

import sys

import pytest
import torchvision
from PIL import Image

from loadtune.errors import WorkloadError
from loadtune.records.config import WorkloadSpec
from loadtune.workload import build_workload
from loadtune.workload.factories import call_factory
from loadtune.workload.models import model_needs


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


@pytest.mark.parametrize(
    ("model", "num_classes", "size"),
    [("resnet50", 1000, 224), ("inception_v3", 1000, 299), ("vit_h_14", 1000, 224), ("fcn_resnet50", 21, 520)],
)
def test_a_models_classes_and_size_are_known_before_it_is_built(model, num_classes, size):
    needs = model_needs(spec(model=model))
    assert (needs.num_classes, needs.image_size) == (num_classes, size)


def test_every_model_of_torchvision_has_a_size():
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
        ({"dataset": "training_workloads:"}, ["pkg.mod:name"]),
        ({"dataset": "training_workloads:needs_arguments"}, ["is a int", "function or class"]),
        (
            {"model": "training_workloads:LitClassifier"},
            ["LitClassifier is a LightningModule", "training_step", "configure_optimizers", "from_lightning"],
        ),
        ({"model": "training_workloads:frozen"}, ["no trainable parameter"]),
        ({"model": "raft_small"}, ["no loss", "--loss"]),
        ({"dataset": "Kinetics", "data_root": "/nowhere"}, ["frames_per_clip", "factory"]),
    ],
)
def test_what_cannot_be_used_is_said_with_what_can(names, words):
    message = str(refused(**names))
    assert all(word in message for word in words), message


def test_a_module_that_parses_its_command_line_is_told_where_to_put_that(in_folder):
    (in_folder / "parses_its_line.py").write_text("import sys\nsys.exit(2)\n")
    with pytest.raises(WorkloadError, match='under `if __name__ == "__main__":`'):
        call_factory("parses_its_line.py:Made", "model")


def test_a_folder_of_images_is_cropped_to_rgb_tensors(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        Image.new("L", (40, 30)).save(tmp_path / "train" / label / "0.png")
    workload = build_workload(spec(dataset="ImageFolder", data_root=str(tmp_path), image_size=16))
    assert workload.num_classes == 2
    assert workload.epoch.num_draws == 2
    assert workload.dataset[1][0].shape == (3, 16, 16)
