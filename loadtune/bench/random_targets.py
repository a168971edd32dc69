"""Where random samples stand in for a dataset: which targets they bring, found from what the model answers.

Apart from `describe`, because a bench that took over from a failed one needs the targets before any request.
"""

from contextlib import suppress

import torch

from loadtune.bench.describe import model_errors
from loadtune.bench.training import ResidentModel
from loadtune.workload import RandomSamples, Workload, class_dimension, model_logits

_NUM_SAMPLES = 2  # batch normalisation over vectors refuses one


def match_random_targets(workload: Workload, model: ResidentModel) -> None:
    """Have random samples bring the targets that the model's own output asks for, from one forward pass.

    Raises WorkloadError where the model does not take samples of that shape. Does nothing to real datasets, and where
    the shape of the targets was given.
    """
    samples = workload.dataset
    if not isinstance(samples, RandomSamples) or samples.output_shape is not None:
        return
    if workload.make_step is not None or not (workload.answers_with_logits or workload.own_batches):
        samples.num_classes = workload.num_classes
        return
    if workload.own_batches:
        samples.num_classes = workload.spec.num_classes or 0
    model.reset("contiguous")
    inputs = torch.stack([samples[index][0] for index in range(_NUM_SAMPLES)]).to(model.device)
    # A function of model and batch may call the model in another way: then the number of classes is not known.
    errors = suppress(Exception) if workload.own_batches else model_errors(workload, samples[0])
    with errors, torch.no_grad():
        output = model.module(inputs)
        if not (workload.own_loss or workload.own_batches):
            logits = model_logits(output)
            class_dimension(logits, logits.new_empty((_NUM_SAMPLES, *logits.shape[2:])))  # raises where there are none
            samples.take_targets_of(logits)
        elif isinstance(output, torch.Tensor) and output.dim() > 1:  # the likeliest; who needs others brings a dataset
            samples.take_targets_of(output)
