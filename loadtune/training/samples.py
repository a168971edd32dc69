"""A few samples of the workload, how long one takes to make, and batches of them on the device, without a loader."""

import contextlib
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from loadtune.errors import WorkloadError
from loadtune.stream.torch_private import reads_worker_info
from loadtune.training.protocol import Line
from loadtune.training.trainer import Trainer, resident_batch
from loadtune.workload import (
    Batch,
    Workload,
    fetch_samples,
    find_places,
    make_batch,
    num_bytes,
    reads_at_once,
    stream_samples,
    uncounted_text,
)

_MAX_SAMPLES = 16  # kept, to make batches of
# Batches that the user's code makes are few: each may be large.
_MAX_BATCHES = 8
# Samples are read in groups of so many, fewer where this time is over: at least two. Of fast ones more groups are read,
# until `_ENOUGH_S` is over. Of three or more groups the slowest tenth does not count, one at the least. 64 samples of
# 2 µs read 33 to 60 µs each where a pause of the interpreter, 2 ms, fell among them.
_GROUP, _MAX_GROUPS = 64, 64
_MAX_SAMPLING_S, _ENOUGH_S = 0.5, 0.25
# Where samples differ in size, so many more are read, up to these bytes, and so many of the largest fill a large batch.
_MORE, _MORE_BYTES, _NUM_LARGEST = 240, 1 << 28, 8
# A batch of the largest is so much larger where samples count as different.
_DIFFERENT = 1.02
# As many samples of a stream as are read at least, to time it.
_FEWEST = 4

_Read = tuple[list[Any], float, float]
"""(Samples to make batches of, seconds of one, CPU seconds of one)."""


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
            read = self._read_stream() if loader.is_iterable else self._read_samples()
            self.samples, sample_s, sample_cpu_s = read
            self._by_size = self._samples_by_size()
            self._made = self._made_batches()
        example, self.places = find_places(workload, self.samples)
        if not (self.places.count or loader.batch_size_is_free):
            raise WorkloadError(f"{uncounted_text(example)} Return tensors whose first dimension counts them.")
        self._per_draw = 1.0
        """Samples of what the sampler, the batch sampler or the stream yields at a time."""
        if loader.batches_are_ready:
            self._per_draw = statistics.fmean(map(self.places.num_samples, self._made))
        elif self._made:
            self._per_draw = statistics.fmean(map(len, workload.epoch.batches))
        self.batch: Batch = (  # of the size that is nearest to the mean where the user's code makes the batches
            min(self._made, key=lambda batch: abs(self.places.num_samples(batch) - self._per_draw))
            if self._made
            else make_batch(self._workload, self.samples)
        )
        self.num = self.num_in_batch if loader.batch_size_is_free else max(1, round(self._per_draw))
        """Samples of a batch as the user's code makes them, on average, or of `batch`."""
        each = self._per_draw if loader.batches_are_ready else 1.0  # they were timed by the batch
        self.sample_s, self.sample_cpu_s = sample_s / each, sample_cpu_s / each

    @property
    def num_per_epoch(self) -> int | None:
        """Samples of an epoch. None: a stream or sampler that does not tell."""
        num_draws = self._workload.epoch.num_draws
        return None if num_draws is None else round(num_draws * self._per_draw)

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
        largest = num_bytes(make_batch(self._workload, samples)) / len(samples)
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
            return trainer.to_device(make_batch(self._workload, of_all_sizes))
        samples = self.samples if self._by_size is None else self._by_size[-_NUM_LARGEST:]
        if self.places.are_known:
            return resident_batch(make_batch(self._workload, samples) if largest else self.batch, batch_size, trainer)
        return trainer.to_device(make_batch(self._workload, [samples[at % len(samples)] for at in range(batch_size)]))

    def _made_batches(self) -> list[Batch]:
        """Batches as the user's code makes them, of usual size and the largest. Empty: any others can be made."""
        work, batches = self._workload, self._workload.epoch.batches
        if work.loader.batches_are_ready:
            return [make_batch(work, drawn) for drawn in self.samples]
        if not batches:
            return []
        mean = statistics.fmean(map(len, batches))
        both = min(batches, key=lambda batch: abs(len(batch) - mean)), max(batches, key=len)
        return [make_batch(work, list(itertools.chain(*self._read(each, len(each))))) for each in both]

    def _read(self, indices: Sequence[Any], at_once: int) -> Iterator[list[Any]]:
        """These samples, so many in one call where the dataset can do that."""
        ready, dataset = self._workload.loader.batches_are_ready, self._workload.dataset
        at_once = at_once if reads_at_once(dataset) and not ready else 1
        for at in range(0, len(indices), at_once):
            some = indices[at : at + at_once]
            self._note(some)
            yield fetch_samples(dataset, some, one_by_one=ready)
            self._line.pulse()

    def _read_stream(self) -> _Read:
        """The first samples of the stream, timed one by one; or its first batches where it makes them itself."""
        samples: list[Any] = []
        times: list[float] = []
        used_s, begun = busy_s(), time.monotonic()
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
        sample_s = max(1e-9, statistics.fmean(later))
        cpu_s = (busy_s() - used_s) / len(times)
        return samples, sample_s, min(sample_s, max(1e-9, cpu_s))

    def _read_samples(self) -> _Read:
        """As many are timed as there is time for."""
        first = self._workload.epoch.indices[:1]
        (samples,) = self._read(first, 1)  # untimed: files open and modules load on the first
        at_once, begun = 1, time.monotonic()
        if reads_at_once(self._workload.dataset):  # as many as a batch may have, fewer where they would take too long
            next(self._read(first, 1))
            at_once = max(1, min(_GROUP, int(_MAX_SAMPLING_S / max(1e-9, time.monotonic() - begun))))
        drawn, means, num_read = _drawn(self._workload), [], 0
        started, used_s = time.monotonic(), busy_s()
        for at in range(0, len(drawn) - _GROUP + 1, _GROUP):
            begun, num = time.monotonic(), 0
            for some in self._read(drawn[at : at + _GROUP], at_once):
                samples = samples + some[: self._max_samples - len(samples)]
                num += len(some)
                if time.monotonic() - begun > _MAX_SAMPLING_S:
                    break
            means.append((time.monotonic() - begun) / num)
            num_read += num
            if time.monotonic() - started > _ENOUGH_S:
                break
        counted_in = sorted(means)[: len(means) - max(1, len(means) // 10)] if len(means) > 2 else means
        sample_s = max(1e-9, statistics.fmean(counted_in))  # whatever the clock's resolution: it is divided by
        cpu_s = (busy_s() - used_s) / num_read
        return samples, sample_s, min(sample_s, max(1e-9, cpu_s))

    def _samples_by_size(self) -> list[Any] | None:
        """Samples, the largest last. None: all have one size, or the user's code makes the batches."""
        work, until = self._workload, time.monotonic() + _MAX_SAMPLING_S
        if len({_size_of(sample) for sample in self.samples}) < 2 or not work.loader.batch_size_is_free:
            return None
        found, num_bytes_read = list(self.samples), 0
        indices = work.epoch.indices
        for (sample,) in self._read(random.Random(work.spec.seed + 1).sample(indices, min(len(indices), _MORE)), 1):
            found.append(sample)
            num_bytes_read += _size_of(sample)
            if time.monotonic() > until or num_bytes_read > _MORE_BYTES:
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


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """As DataLoader has it in each worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _drawn(workload: Workload) -> list[Any]:
    """Indices from all over an epoch, in random order: any first of them are a fair sample too.

    A group at the least, of a small dataset the same ones again: it is the only way to time its only sample. No more
    than a quarter of the epoch beyond that: what keeps its samples would have them all before a worker asks.
    """
    indices = workload.epoch.indices
    count = max(_GROUP, min(len(indices) // 4, _MAX_GROUPS * _GROUP))
    drawn = random.Random(workload.spec.seed).sample(indices, min(len(indices), count))
    return list(itertools.islice(itertools.cycle(drawn), count))


def busy_s() -> float:
    """CPU seconds of this process and of its children that ended, and seconds in which this thread waited for a core.

    So neither a decoder of its own nor other load on the machine makes a sample one that waits for storage.
    """
    try:
        queued_s = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued_s = 0.0
    return time.process_time() + sum(os.times()[2:4]) + queued_s
