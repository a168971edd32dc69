"""Which outputs and targets train together, and where their classes are."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from workload_rig import workload_of

from loadtune.errors import WorkloadError
from loadtune.workload.build import check_labels, check_targets, class_dimension, class_loss, make_optimizer
from loadtune.workload.loaders import make_batch


@pytest.mark.parametrize(
    ("logits", "targets", "dimension"),
    [
        ((4, 10), (4,), 1),
        ((2, 5, 3, 8, 8), (2, 3, 8, 8), 1),
        ((2, 7, 30), (2, 7), -1),
        ((2, 7, 7), (2, 7), 1),  # both fit: channels first counts
        ((1, 1), (1,), 1),
    ],
)
def test_classes_are_found_where_the_targets_leave_them(logits, targets, dimension):
    assert class_dimension(torch.zeros(logits), torch.zeros(targets)) == dimension


@pytest.mark.parametrize(
    ("logits", "targets"),
    [((4,), (4,)), ((4, 10), (4, 1)), ((4, 3, 8, 8), (4,)), ((2, 5, 8, 8), (2, 8, 4)), ((3, 10), (4,))],
)
def test_shapes_that_do_not_go_together_are_both_named(logits, targets):
    with pytest.raises(WorkloadError) as raised:
        class_dimension(torch.zeros(logits), torch.zeros(targets))
    assert str(logits) in str(raised.value)
    assert str(targets) in str(raised.value)


def test_classes_in_the_last_dimension_train_as_in_the_second():
    logits, targets = torch.randn(2, 5, 7), torch.randint(0, 5, (2, 7))
    first = class_loss(lambda inputs: logits, torch.zeros(2), targets)
    last = class_loss(lambda inputs: logits.movedim(1, -1), torch.zeros(2), targets)
    assert torch.allclose(first, cross_entropy(logits, targets))
    assert torch.allclose(first, last)


def test_labels_of_positions_may_be_ignored_those_of_samples_not():
    dense = torch.tensor([[0, 2, -100]])
    check_labels((torch.zeros(1), dense), num_classes=3)
    check_labels((torch.zeros(1), torch.full((1, 2), -100)), num_classes=3)
    with pytest.raises(WorkloadError, match=r"target is 2.*or be -100"):
        check_labels((torch.zeros(1), dense), num_classes=2)
    with pytest.raises(WorkloadError, match=r"target is -100.*Correct the labels or the model"):
        check_labels((torch.zeros(1), torch.tensor([-100])), num_classes=3)
    with pytest.raises(WorkloadError, match="Give --num-classes, or correct the labels"):
        check_labels((torch.zeros(1), torch.tensor([3])), num_classes=3, is_own=False)


@pytest.mark.parametrize("target", [0.5, torch.zeros(3), True])
def test_other_targets_need_a_loss(target):
    samples = [(torch.zeros(2), target)] * 2
    with pytest.raises(WorkloadError, match="give a loss function"):
        check_targets(workload_of(samples), make_batch(workload_of(samples).loader, samples), samples[0])
    assert make_batch(workload_of(samples).loader, samples)[1].dtype != torch.long


def test_a_function_that_makes_an_optimizer_takes_the_parameters_or_the_model():
    model = nn.Linear(3, 2)
    for function in (torch.optim.AdamW, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)):
        made = make_optimizer(function, model, fused=False)
        assert made.param_groups[0]["params"] == list(model.parameters())


def test_samples_that_a_collate_function_changes_serve_again() -> None:
    def counted(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([sample.add_(number) for number, sample in enumerate(samples)])

    loader = replace(workload_of([torch.zeros(1)]).loader, collate_fn=counted)
    samples = [torch.zeros(1)] * 3  # one sample, repeated
    for _ in range(2):
        assert make_batch(loader, samples).flatten().tolist() == [0.0, 1.0, 2.0]
