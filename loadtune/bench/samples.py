"""A few samples of the workload, how long one takes to make, and batches of them on the device, without a loader."""

import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from loadtune.bench.line import Line
from loadtune.bench.training import Trainer, resident_batch
from loadtune.errors import WorkloadError
from loadtune.stream.torch_private import reads_worker_info
from loadtune.workload import (
    Batch,
    Places,
    Workload,
    collate_samples,
    fetch_samples,
    last_line,
    num_bytes,
    places_along,
    places_of,
    places_of_ready,
    structure_text,
    tensors_of,
    user_traceback,
)

_MAX_SAMPLES = 16  # kept, to make batches of
# Samples are read in groups of so many, fewer where this time is over: at least two. Of fast ones more groups are read,
# until `_ENOUGH_S` is over, and of three or more the slowest tenth does not count, one at the least: 64 samples of 2 µs
# read 33 to 60 µs each where a pause of the interpreter, 2 ms, fell among them.
_GROUP, _MAX_GROUPS = 64, 64
_MAX_SAMPLING_S, _ENOUGH_S = 0.5, 0.25
# Where samples differ in size, so many more are read, up to these bytes, and so many of the largest fill a large batch.
_MORE_SAMPLES, _MORE_BYTES, _NUM_LARGEST = 240, 1 << 28, 8
# A batch of the largest is so much larger where samples count as different.
_DIFFERENT = 1.02
# Batches of so many samples are compared to find where samples lie in a batch.
_FEWER, _MORE = 2, 3


class Samples:
    """A few samples from all over the dataset, or the first ones of a stream."""

    def __init__(self, workload: Workload, line: Line) -> None:
        line.enter("samples")
        self._workload = workload
        self._ready: Batch = None
        self.is_shared_out = False
        """Of a stream: whether it asks which worker it is read by."""
        self._indices: list[int] = []
        loader = workload.loader
        with _one_thread(), line.samples.reading() as note:
            if loader.is_iterable:
                self.is_shared_out = reads_worker_info(loader.dataset, loader.worker_init_fn)
                self._read_stream(line)
            else:
                self.samples, self._indices, self.sample_s, self.sample_cpu_s = _read_samples(workload, line, note)
            self._by_size = self._samples_by_size(line)
        self.batch: Batch = self._collated(self.samples) if self._ready is None else self._ready
        self.places = self._places()
        if not (self.places.count or loader.batch_size_is_free):
            raise WorkloadError(
                f"How many samples a batch has cannot be told from {structure_text(self.batch)}. Say which dimension "
                "of its tensors counts them: --batch-dim, or WorkloadSpec(batch_dim=...)."
            )
        self.num = self._own_size()
        """Samples of a batch as the user's code makes them, or of `batch`."""
        if self._ready is not None:  # they were timed by the batch
            self.sample_s, self.sample_cpu_s = self.sample_s / self.num, self.sample_cpu_s / self.num

    @property
    def example(self) -> Any:
        """What an error shows of the samples."""
        return self.samples[0]

    @property
    def first_bytes(self) -> int:
        """Bytes of a sample in the largest tensor of a batch, which is pinned into a block of its own."""
        return max(map(num_bytes, tensors_of(self.batch)), default=0) // max(1, self.num_in_batch)

    @property
    def num_in_batch(self) -> int:
        """Samples of `batch`."""
        return self.places.num_samples(self.batch) if self.places.count else len(self.samples)

    @property
    def largest_bytes(self) -> int | None:
        """Of a sample, in a batch of the largest that were read. None: all have one size."""
        if self._by_size is None:
            return None
        samples = self._by_size[-_NUM_LARGEST:]
        largest = num_bytes(self._collated(samples)) / len(samples)
        mean = num_bytes(self.batch) / self.num_in_batch
        return round(largest) if largest > _DIFFERENT * mean else None

    def resident(self, batch_size: int, trainer: Trainer, *, largest: bool = False) -> Batch:
        """A few samples, repeated to the batch's size, on the device. ``largest``: of the largest that were read, else
        of all sizes, as often as they were read: what is padded to the largest of few is smaller than of many."""
        if not self._workload.loader.batch_size_is_free:
            return trainer.to_device(self.batch)
        if self._by_size is not None and not largest:
            every = len(self._by_size) / batch_size
            of_all_sizes = [self._by_size[int((at + 0.5) * every)] for at in range(batch_size)]
            return trainer.to_device(self._collated(of_all_sizes))
        samples = self.samples if self._by_size is None else self._by_size[-_NUM_LARGEST:]
        if self.places.are_known:
            return resident_batch(self._collated(samples) if largest else self.batch, batch_size, trainer)
        return trainer.to_device(self._collated([samples[at % len(samples)] for at in range(batch_size)]))

    def _collated(self, samples: Sequence[Any]) -> Batch:
        work = self._workload
        if self._ready is not None:
            return self._ready
        return collate_samples(
            samples,
            self._indices if len(self._indices) == len(samples) else range(len(samples)),
            any_target=work.own_loss,
            any_structure=work.own_batches,
            collate=work.loader.collate_fn,
        )

    def _places(self) -> Places:
        dim = self._workload.spec.batch_dim
        if dim is not None:
            return places_along(self.batch, dim)
        if self._ready is not None:
            return places_of_ready(self.batch)
        fewer, more = (
            self._collated([self.samples[at % len(self.samples)] for at in range(num)]) for num in (_FEWER, _MORE)
        )
        return places_of(fewer, more, _FEWER, _MORE)

    def _own_size(self) -> int:
        batch_sampler = self._workload.loader.batch_sampler
        if batch_sampler is None:
            return self.num_in_batch
        sizes = [len(indices) for indices in itertools.islice(batch_sampler, _MAX_SAMPLES)]
        if not sizes:
            raise WorkloadError("The batch sampler of the loader draws no batch. Give it samples to draw.")
        size = round(statistics.fmean(sizes))
        self.batch = self._collated([self.samples[at % len(self.samples)] for at in range(size)])
        return size

    def _read_stream(self, line: Line) -> None:
        """The first samples of the stream, timed one by one; or its first batches where it makes them itself."""
        loader = self._workload.loader
        self.samples, times = [], []
        used_s, begun = _busy_s(), time.monotonic()
        try:
            for sample in loader.dataset:
                line.pulse()
                now = time.monotonic()
                times.append(now - begun)
                begun = now
                if len(self.samples) < _MAX_SAMPLES:
                    self.samples.append(sample)
                if len(times) > _GROUP or (sum(times) > _MAX_SAMPLING_S and len(times) > _MORE):
                    break
        except Exception as error:
            raise WorkloadError(
                f"Reading the stream raised {last_line(error)}, after {len(times)} samples.", user_traceback(error)
            ) from error
        if not self.samples:
            raise WorkloadError("The stream is empty: it ends without a sample. Point it to data.")
        later = times[1:] or times  # files open and modules load on the first
        self.sample_s = max(1e-9, statistics.fmean(later))
        self.sample_cpu_s = min(self.sample_s, max(1e-9, (_busy_s() - used_s) / len(times)))
        if not loader.batch_size_is_free:
            self._ready = self.samples[0] if loader.collate_fn is None else loader.collate_fn(self.samples[0])

    def _samples_by_size(self, line: Line) -> list[Any] | None:
        """Samples, the largest last. None: all have one size."""
        loader, until = self._workload.loader, time.monotonic() + _MAX_SAMPLING_S
        sizes = {_size_of(sample) for sample in self.samples}
        if len(sizes) < 2 or not loader.batch_size_is_free:
            return None
        more: list[Any] = []
        num_bytes_read = 0
        if not loader.is_iterable:
            length = self._workload.dataset_length or 1
            for index in random.Random(self._workload.spec.seed + 1).sample(range(length), min(length, _MORE_SAMPLES)):
                if time.monotonic() > until or num_bytes_read > _MORE_BYTES:
                    break
                more += fetch_samples(loader.dataset, [index])
                num_bytes_read += _size_of(more[-1])
                line.pulse()
        return sorted([*self.samples, *more], key=_size_of)


def _size_of(sample: Any) -> int:
    """Bytes of its tensors, and elements of what else it holds."""
    if isinstance(sample, torch.Tensor):
        return sample.nbytes
    if isinstance(sample, dict):
        return sum(map(_size_of, sample.values()))
    if isinstance(sample, (tuple, list)):
        return sum(map(_size_of, sample)) if sample and not isinstance(sample[0], (int, float)) else 8 * len(sample)
    return int(getattr(sample, "nbytes", 1))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As DataLoader has it in each worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _drawn(workload: Workload) -> list[int]:
    """Indices from all over the dataset, in random order: any first of them are a fair sample too.

    A group at the least, of a small dataset the same ones again: it is the only way to time its only sample. No more
    than a quarter of the dataset beyond that: what keeps its samples would have them all before a worker asks.
    """
    length = workload.dataset_length or 1
    count = max(_GROUP, min(length // 4, _MAX_GROUPS * _GROUP))
    drawn = random.Random(workload.spec.seed).sample(range(length), min(length, count))
    return list(itertools.islice(itertools.cycle(drawn), count))


def _read_samples(
    workload: Workload, line: Line, note: Callable[[int], None]
) -> tuple[list[Any], list[int], float, float]:
    """(Samples to make batches of, their indices, seconds of one, CPU seconds of one).

    As many are timed as there is time for. ``note`` is called with the index of a sample before the sample is loaded.
    """
    note(0)
    samples, indices = fetch_samples(workload.dataset, [0]), [0]  # untimed: files open and modules load on the first
    drawn, means, started = _drawn(workload), [], time.monotonic()
    used_s, num_read = _busy_s(), 0
    for at in range(0, len(drawn) - _GROUP + 1, _GROUP):
        group, mean_s, num = _read_group(workload, drawn[at : at + _GROUP], line, note)
        kept = group[: _MAX_SAMPLES - len(samples)]
        samples, indices = samples + kept, indices + drawn[at : at + len(kept)]
        means.append(mean_s)
        num_read += num
        if time.monotonic() - started > _ENOUGH_S:
            break
    counted_in = sorted(means)[: len(means) - max(1, len(means) // 10)] if len(means) > 2 else means
    sample_s = max(1e-9, statistics.fmean(counted_in))  # whatever the clock's resolution: it is divided by
    cpu_s = (_busy_s() - used_s) / num_read
    return samples, indices, sample_s, min(sample_s, max(1e-9, cpu_s))


def _busy_s() -> float:
    """CPU seconds of this process so far, and seconds in which this thread was ready and waited for a core: other load
    on the machine makes no sample one that waits for storage."""
    try:
        queued_s = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued_s = 0.0
    return time.process_time() + queued_s


def _read_group(
    workload: Workload, indices: list[int], line: Line, note: Callable[[int], None]
) -> tuple[list[Any], float, int]:
    """(Its first samples, mean seconds of one, how many were read); fewer of them where they are slow."""
    group: list[Any] = []
    num_read, started = 0, time.monotonic()
    for index in indices:
        note(index)
        sample = fetch_samples(workload.dataset, [index])
        group += sample if len(group) < _MAX_SAMPLES else []
        num_read += 1
        line.pulse()
        if time.monotonic() - started > _MAX_SAMPLING_S:
            break
    return group, (time.monotonic() - started) / num_read, num_read
