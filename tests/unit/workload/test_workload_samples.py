"""Samples: fetched, collated, and refused in words."""

import bench_workloads
import pytest

from loadtune.errors import WorkloadError
from loadtune.workload import collate_samples, fetch_samples, user_traceback


def test_good_samples_make_a_batch():
    inputs, targets = collate_samples(fetch_samples(bench_workloads.Images(), [0, 1, 2]), [0, 1, 2])
    assert inputs.shape == (3, 3, 8, 8)
    assert targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (
            bench_workloads.OddShapes(),
            ["the input differs", "dataset[0] has float32 tensor (3, 8, 8)", "dataset[1] has float32 tensor (3, 8, 9)"],
        ),
        (
            bench_workloads.OddTargets(),
            ["the target differs", "dataset[0] has int64 tensor (1,)", "dataset[1] has int64 tensor (2,)"],
        ),
        (bench_workloads.Pictures(), ["the input of dataset[0]", "mode=RGB size=8x8", "ToTensor"]),
        (bench_workloads.FloatTargets(), ["float 0.5", "class index"]),
        (bench_workloads.NotPairs(), ["float32 tensor (3, 8, 8)", "class index"]),
    ],
)
def test_samples_that_cannot_be_trained_on_are_shown(dataset, words):
    with pytest.raises(WorkloadError) as raised:
        collate_samples(fetch_samples(dataset, [0, 1]), [0, 1])
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_targets_of_different_shapes_are_not_called_inputs():
    dataset = bench_workloads.OddTargets()
    with pytest.raises(WorkloadError) as raised:
        collate_samples(fetch_samples(dataset, [0, 1]), [0, 1])
    assert "input" not in str(raised.value)
    assert "collate function" in str(raised.value)


def test_an_error_without_any_other_code_has_no_user_traceback():
    assert user_traceback(ValueError("never raised")) is None
