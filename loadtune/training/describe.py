"""Find out what the workload is: read a few samples, time and collate them, train one small batch, say what does not
work."""

import contextlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from loadtune.errors import WorkloadError
from loadtune.host.processes import loading_s
from loadtune.records.config import PRECISIONS, Precision
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.measurement import MEMORY_KINDS
from loadtune.stream.torch_private import reads_worker_info
from loadtune.training.failures import classify_error
from loadtune.training.memory import DeviceMemory
from loadtune.training.process import Line
from loadtune.training.steps import ResidentModel, Trainer
from loadtune.workload import batches
from loadtune.workload.batches import Batch, is_pair, num_bytes, sample_shape, structure_text, tensors_of
from loadtune.workload.build import Workload, check_labels, check_targets, class_dimension, code_of, model_logits
from loadtune.workload.datasets import RandomSamples
from loadtune.workload.loaders import fetch_samples, find_places, make_batch, one_thread, stream_samples
from loadtune.workload.user_code import cause, last_line, user_traceback

_MAX_SAMPLES, _MAX_BATCHES = 16, 8  # kept, to make batches of; of batches that the user's code makes
# Samples are read in groups of so many, fewer where this time is over: at least two. Of fast ones more groups are read,
# until `_ENOUGH_S` is over. Of three or more groups the slowest tenth does not count, as a pause falls into one.
_GROUP, _MAX_GROUPS = 64, 64
_MAX_SAMPLING_S, _ENOUGH_S = 0.5, 0.25
_AT_ONCE = 16  # with one call, where the dataset reads a batch so
_MORE, _MORE_BYTES = 240, 1 << 28  # are read where samples differ in size
_NUM_FEW = 8  # are repeated in a large batch, the largest where samples differ in size
_DIFFERENT = 1.02  # times as large a batch of the largest is, where samples count as different
_FEWEST = 4  # samples of a stream, to time it

_Read = tuple[list[Any], float, float]
"""Samples to make batches of; seconds of one, and those of them that are no waiting for storage: CPU time, and waiting
for a core. Both may be 0, as the clock sees it."""


class Samples:
    """A few samples from all over an epoch, or the first ones of a stream."""

    def __init__(self, workload: Workload, line: Line) -> None:
        line.enter("samples")
        self._workload, self._line = workload, line
        loader = workload.loader
        self.is_shared_out = loader.is_iterable and reads_worker_info(
            loader.dataset, loader.worker_init_fn, loader.multiprocessing_context
        )
        """Of a stream: whether it asks which worker it is read by."""
        self._max_samples = _MAX_BATCHES if loader.batches_are_ready else _MAX_SAMPLES
        with one_thread(), line.samples.reading() as self._note:
            self.samples, sample_s, cpu_s = self._read_stream() if loader.is_iterable else self._read_samples()
            self._by_size = self._samples_by_size()
            self._made = self._made_batches()
        example, self.places = find_places(loader, self.samples)
        check_targets(workload, example, self.samples[0])
        if not (self.places.count or loader.batch_size_is_free):
            raise WorkloadError(f"{batches.uncounted_text(example)} Return tensors whose first dimension counts them.")
        ready = loader.batches_are_ready
        sizes = map(self.places.num_samples, self._made) if ready else map(len, workload.epoch.batches)
        # Samples of what the sampler, the batch sampler or the stream yields at a time.
        per_draw = statistics.fmean(sizes) if self._made else 1.0
        if self._made:  # of the size that is nearest to the mean
            self.batch = min(self._made, key=lambda batch: abs(self.places.num_samples(batch) - per_draw))
        else:
            self.batch = make_batch(workload.loader, self.samples)
        self.num_in_batch = self.places.num_samples(self.batch) if self.places.count else len(self.samples)
        """Samples of `batch`."""
        self.num = self.num_in_batch if loader.batch_size_is_free else max(1, round(per_draw))
        """Samples of a batch as the user's code makes them, on average, or of `batch`."""
        each = per_draw if ready else 1.0  # they were timed by the batch
        self.sample_s = max(1e-9, sample_s / each)
        self.sample_cpu_s = min(self.sample_s, max(1e-9, cpu_s / each))
        num_draws = workload.epoch.num_draws
        self.num_per_epoch = None if num_draws is None else round(num_draws * per_draw)
        """None: a stream or sampler that does not tell."""

    @property
    def largest_bytes(self) -> int | None:
        """Of a sample, in a batch of the largest that were read. None: all have one size."""
        if self._by_size is None:
            return None
        samples = self._by_size[-_NUM_FEW:]
        largest = num_bytes(make_batch(self._workload.loader, samples)) / len(samples)
        mean = num_bytes(self.batch) / self.num_in_batch
        return round(largest) if largest > _DIFFERENT * mean else None

    def resident(self, batch_size: int, trainer: Trainer, *, largest: bool = False) -> Batch:
        """A few samples, repeated to the batch's size, on the device. ``largest``: of the largest that were read, else
        of all sizes, as often as they were read: what is padded to the largest of few is smaller than of many."""
        if self._made:
            return trainer.to_device(max(self._made, key=num_bytes) if largest else self.batch)
        if self._by_size is not None and not largest:
            every = len(self._by_size) / batch_size
            of_all_sizes = [self._by_size[int((at + 0.5) * every)] for at in range(batch_size)]
            return trainer.to_device(make_batch(self._workload.loader, of_all_sizes))
        samples = self.samples if self._by_size is None else self._by_size[-_NUM_FEW:]
        if not self.places.are_known:
            samples = [samples[at % len(samples)] for at in range(batch_size)]
            return trainer.to_device(make_batch(self._workload.loader, samples))
        few = trainer.to_device(make_batch(self._workload.loader, samples[:_NUM_FEW]))
        return trainer.to_device(self.places.repeated(few, batch_size))  # again: indexing need not keep the layout

    def _made_batches(self) -> list[Batch]:
        """Batches as the user's code makes them, of usual size and the largest. Empty: any others can be made."""
        work, known = self._workload, self._workload.epoch.batches
        if work.loader.batches_are_ready:
            return [make_batch(work.loader, drawn) for drawn in self.samples]
        if not known:
            return []
        mean = statistics.fmean(map(len, known))
        both = min(known, key=lambda batch: abs(len(batch) - mean)), max(known, key=len)
        return [make_batch(work.loader, list(itertools.chain(*self._read(each, len(each))))) for each in both]

    def _read(self, indices: Sequence[Any], at_once: int = _AT_ONCE) -> Iterator[list[Any]]:
        """These samples, so many in one call where the dataset can do that."""
        loader = self._workload.loader
        at_once = at_once if loader.reads_at_once else 1
        for at in range(0, len(indices), at_once):
            some = indices[at : at + at_once]
            self._note(some)
            yield fetch_samples(loader, some)
            self._line.pulse()

    def _read_stream(self) -> _Read:
        """The first samples of the stream, timed one by one; or its first batches where it makes them itself."""
        samples: list[Any] = []
        times: list[float] = []
        used_s, begun = sum(loading_s()), time.monotonic()
        for sample in stream_samples(self._workload.dataset):
            self._line.pulse()
            now = time.monotonic()
            times.append(now - begun)
            begun = now
            if len(samples) < self._max_samples:
                samples.append(sample)
            if len(times) > _GROUP or (sum(times) > _MAX_SAMPLING_S and len(times) >= _FEWEST):
                break
        later = times[1:] or times  # files open and modules load on the first
        return samples, statistics.fmean(later), (sum(loading_s()) - used_s) / len(times)

    def _read_samples(self) -> _Read:
        """As many are timed as there is time for."""
        indices = self._workload.epoch.indices
        (samples,) = self._read(indices[:1])  # untimed: files open and modules load on the first
        # A group at the least, of a small dataset the same ones again. Beyond that no more than a quarter of the epoch:
        # a dataset that keeps its samples would have them all before a worker asks.
        count = max(_GROUP, min(len(indices) // 4, _MAX_GROUPS * _GROUP))
        some_of_all = random.Random(self._workload.spec.seed).sample(indices, min(len(indices), count))
        drawn, means, num_read = list(itertools.islice(itertools.cycle(some_of_all), count)), [], 0
        started, used_s = time.monotonic(), sum(loading_s())
        for at in range(0, len(drawn) - _GROUP + 1, _GROUP):
            begun, num = time.monotonic(), 0
            for some in self._read(drawn[at : at + _GROUP]):
                samples = samples + some[: self._max_samples - len(samples)]
                num += len(some)
                if time.monotonic() - begun > _MAX_SAMPLING_S:
                    break
            means.append((time.monotonic() - begun) / num)
            num_read += num
            if time.monotonic() - started > _ENOUGH_S:
                break
        counted_in = sorted(means)[: len(means) - max(1, len(means) // 10)] if len(means) > 2 else means
        return samples, statistics.fmean(counted_in), (sum(loading_s()) - used_s) / num_read

    def _samples_by_size(self) -> list[Any] | None:
        """Samples, the largest last. None: all have one size, or the user's code makes the batches."""
        work, until = self._workload, time.monotonic() + _MAX_SAMPLING_S
        if len({_size_of(sample) for sample in self.samples}) < 2 or not work.loader.batch_size_is_free:
            return None
        found, indices = list(self.samples), work.epoch.indices
        for (sample,) in self._read(random.Random(work.spec.seed + 1).sample(indices, min(len(indices), _MORE)), 1):
            found.append(sample)
            if time.monotonic() > until or sum(map(_size_of, found)) > _MORE_BYTES:
                break
        return sorted(found, key=_size_of)


def _size_of(sample: Any) -> int:
    """Bytes of its tensors, and elements of what else it holds."""
    if isinstance(sample, (str, bytes)):
        return len(sample)
    if isinstance(sample, Mapping):
        return sum(map(_size_of, sample.values()))
    if isinstance(sample, (tuple, list)):
        return sum(map(_size_of, sample)) if sample and not isinstance(sample[0], (int, float)) else 8 * len(sample)
    nbytes = getattr(sample, "nbytes", None)
    return int(nbytes) if nbytes is not None else num_bytes(sample) or 1


# One small batch of them


def train_small(trainer: Trainer, samples: Samples, line: Line) -> tuple[int, int]:
    """(smallest batch that trains, number of classes): one step at 2 samples, then one at 1. Where the user's code
    makes the batches, one step on a batch as it comes."""
    line.enter("first step")
    workload, num_classes = trainer.workload, trainer.workload.num_classes
    own_sizes = not workload.loader.batch_size_is_free
    with model_errors(workload, samples.samples[0]):
        batch = samples.resident(samples.num if own_sizes else 2, trainer)
        by_class = workload.loss_takes == "classes" and is_pair(batch)
        if by_class and all(isinstance(part, torch.Tensor) for part in batch):
            with torch.no_grad():
                logits = model_logits(trainer.module(batch[0]))
            num_classes = logits.shape[class_dimension(logits, batch[1])]
            check_labels(samples.batch, num_classes, is_own="model" in workload.own)
        for _ in range(trainer.accumulate):
            trainer.step(batch)
        trainer.synchronize()
    smallest = 1
    if not own_sizes:
        line.pulse()
        try:
            trainer.step(samples.resident(1, trainer))
            trainer.synchronize()
        except (ValueError, TypeError, RuntimeError, IndexError, AssertionError, WorkloadError) as error:
            if classify_error(error) in MEMORY_KINDS:
                raise
            smallest = 2  # mostly for batch normalisation; others squeeze the batch away
    return smallest, num_classes


@contextlib.contextmanager
def model_errors(workload: Workload, sample: Any) -> Iterator[None]:
    """What a model raises on its first samples becomes a WorkloadError; lack of memory stays what it is."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError) as error:
        if classify_error(error) in MEMORY_KINDS:
            raise
        like, named = f"a batch of samples like {structure_text(sample)}", cause(error)
        message = f"model {workload.spec.model} does not train on {like}: {last_line(error)}"
        advice = _shape_advice(workload, sample)
        if named:
            message = f"{named}. It was called with {like}"
            advice = advice if isinstance(workload.dataset, RandomSamples) else "Correct it, and run again."
        may_be_own = "model" in workload.own or workload.loss_takes != "classes"
        trace = user_traceback(error) if may_be_own else None
        raise WorkloadError(f"{message}. {advice}", trace) from error


def _shape_advice(workload: Workload, sample: Any) -> str:
    if isinstance(sample, Mapping) and workload.loss_takes != "outputs":
        return (
            "The model is called as model(**batch) and has to return an object with `.loss`. Rename the keys, or give "
            "a function `fn(model, batch) -> scalar`: --loss FILE.py:fn."
        )
    if isinstance(workload.dataset, RandomSamples):
        return (
            "The model has to take the input shape: change the shape or the model. If the loss takes other targets "
            "than class indices, pass a dataset instead of the shape."
        )
    spec = workload.spec
    if workload.own & {"loader", "dataset"}:
        return "The model has to take what the dataset delivers: change the dataset or the model."
    from loadtune.changes.vision import find_transforms  # needs torchvision, which a dataset that was named is of

    steps = ", ".join(type(step).__name__ for each in find_transforms(workload.dataset) for step in each.steps)
    return (
        f"The dataset {spec.dataset} comes with the transform {steps}: change --image-size or the model, or "
        "give a function that makes the dataset: --dataset FILE.py:fn."
    )


def describe(
    workload: Workload, samples: Samples, trained: tuple[int, int], device: Device, memory: DeviceMemory
) -> WorkloadFacts:
    loader, batch = workload.loader, samples.batch
    first, shape = next(tensors_of(batch), None), sample_shape(batch, samples.places)
    return WorkloadFacts(
        dataset_length=samples.num_per_epoch,
        input_shape=shape,
        input_dtype="none" if first is None else str(first.dtype).removeprefix("torch."),
        sample_bytes=num_bytes(batch) // max(1, samples.num_in_batch),
        sample_s=samples.sample_s,
        sample_cpu_s=samples.sample_cpu_s,
        num_classes=trained[1],
        num_parameters=sum(parameter.numel() for parameter in workload.model.parameters()),
        precisions=precisions_of(device),
        min_batch_size=trained[0],
        device_name=device.name,
        memory_capacity_bytes=memory.capacity_bytes(),
        code=code_of(workload),
        torchvision=getattr(sys.modules.get("torchvision"), "__version__", None),
        own_loader=loader.settings(samples.num) if "loader" in workload.own else None,
        loader_class=loader.loader_class,
        fixed_batch_size=None if loader.batch_size_is_free else samples.num,
        max_workers=1 if loader.is_iterable and not samples.is_shared_out else None,
        largest_sample_bytes=samples.largest_bytes,
        batch_is_mapping=isinstance(batch, Mapping),
        takes_channels_last=len(shape) == 3,
        own_batches=workload.loss_takes == "batch",
    )


def precisions_of(device: Device) -> tuple[Precision, ...]:
    """That it computes natively."""
    if device.kind != "cuda":
        return ("fp32", "bf16")  # fp16 on a CPU is emulated, and no GradScaler helps that
    return PRECISIONS if torch.cuda.is_bf16_supported(including_emulation=False) else ("fp32", "fp16")


def match_random_targets(workload: Workload, model: ResidentModel) -> None:
    """Have random samples bring the targets that the model's own output asks for, from one forward pass.

    Raises WorkloadError where the model does not take samples of that shape. Does nothing to real datasets.
    """
    samples = workload.dataset
    if not isinstance(samples, RandomSamples):
        return
    own_batches = workload.loss_takes == "batch"
    if own_batches:
        samples.num_classes = workload.spec.num_classes or 0
    model.reset("contiguous")
    inputs = torch.stack([samples[0][0], samples[1][0]]).to(model.device)  # batch normalisation may refuse one
    # A function of model and batch may call the model in another way: then the number of classes is not known.
    errors = contextlib.suppress(Exception) if own_batches else model_errors(workload, samples[0])
    with errors, torch.no_grad():
        output = model.module(inputs)
        if workload.loss_takes == "classes":
            output = model_logits(output)
            class_dimension(output, output.new_empty((2, *output.shape[2:])))  # raises where there are none
        if isinstance(output, torch.Tensor) and output.dim() > 1:  # the likeliest; who needs others brings a dataset
            samples.num_classes, samples.target_shape = output.shape[1], tuple(output.shape[2:])
