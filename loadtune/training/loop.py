"""Train on real batches: of a loader that never ends, in windows, until the controller has seen enough."""

import math
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import reduction
from pickle import PicklingError
from typing import Any, NamedTuple

import torch
from torch.utils.data import RandomSampler

from loadtune.records.config import LoaderConfig
from loadtune.records.loading import KEPT_STEPS
from loadtune.records.measurement import TrainingRun, TrialFailure, Window
from loadtune.stream import torch_private
from loadtune.stream.looks import Looks
from loadtune.stream.sample_table import Row, SampleTable
from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.torch_private import Depth
from loadtune.stream.worker_rows import num_made
from loadtune.training.failures import increase
from loadtune.training.memory import DeviceMemory, page_lock_s
from loadtune.training.process import Line
from loadtune.training.steps import Trainer
from loadtune.units import counted
from loadtune.workload.batches import Batch, num_tokens
from loadtune.workload.build import Workload
from loadtune.workload.loaders import Endless, LoaderParts, named_collate
from loadtune.workload.user_code import note_cause, note_index

_DEATH_S = 5.0  # from a connection that a dying worker closed until its death can be seen
_PATIENCE_S = 0.05  # with all workers that are in the middle of a batch nobody wants


class NoBatchError(Exception):
    """An epoch has no full batch: what to do about it."""


def _drawn(workload: Workload, seed: int) -> dict[str, Any]:
    """What is drawn, in which order, as arguments of a DataLoader: the user's own order without end.

    At an epoch's end the queue runs down and is filled again. A window that sees one without the other is wrong: 52
    samples/s where 867 trained, of 20 batches. What an epoch's end costs is timed apart.
    """
    parts: LoaderParts = workload.loader
    if parts.is_iterable:
        return {}
    if parts.batch_sampler is not None:
        return {"batch_sampler": Endless(parts.batch_sampler)}
    if type(parts.sampler) is RandomSampler and not parts.sampler.replacement:
        generator = torch.Generator().manual_seed(seed)
        return {"sampler": Endless(RandomSampler(range(len(workload.epoch.indices)), generator=generator))}
    return {"sampler": Endless(parts.sampler)}


class EndlessLoader:
    """Batches without the end of an epoch. Loaders of another `number` read in another order, as epochs do: files that
    the last one has read come from memory."""

    def __init__(
        self,
        workload: Workload,
        config: LoaderConfig,
        *,
        number: int = 0,
        table: SampleTable | None = None,
        looks: Looks | None = None,
    ) -> None:
        """``table``: says which samples are being loaded, to whoever else can read it. ``looks``: what takes the time
        of those that load; it goes on where earlier loaders of these settings left it. None: nobody looks."""
        seed = workload.spec.seed + number
        parts = self._parts = workload.loader
        self.config = config
        given = _drawn(workload, seed)
        if parts.batch_size_is_free:
            given["drop_last"] = True
        if not (parts.batched_fetch or parts.batches_are_ready):
            given["collate_fn"] = named_collate(parts.collate_fn)
        self._loader: Any = parts.make(config, **given, generator=torch.Generator().manual_seed(seed))
        self._table, self._looks = table, looks
        self._iterator: SwitchingIterator | None = None
        self._begun_s = self._first_s = 0.0

    def next_batch(self) -> Batch:
        """The next batch; the first call starts the workers. Raises NoBatchError where an epoch has none."""
        batch = self._next()
        if batch is None:  # the epoch of the stream is over
            if self._loader.persistent_workers:
                self._started()._reset(self._loader)
            else:
                self._iterator = None  # which ends its workers
            batch = self._next()
        if batch is None:
            raise NoBatchError(
                f"an epoch of the stream has no full batch of {self.config.batch_size} samples for "
                f"{counted(self.config.num_workers, 'worker')}: use a smaller batch or a longer stream, and check that "
                "it gives each worker its share of the samples"
            )
        self._first_s = self._first_s or time.monotonic() - self._begun_s
        return batch

    def _started(self) -> SwitchingIterator:
        if self._iterator is None:
            self._begun_s = time.monotonic()
            with _unpicklable_named(self._parts):
                self._iterator = SwitchingIterator(
                    self._loader, table=self._table, sample_error=note_index, looks=self._looks
                )
        return self._iterator

    def _next(self) -> Batch | None:
        """None: there is no further one."""
        batches = self._started()
        try:
            return next(batches, None)
        except (OSError, EOFError, RuntimeError) as error:
            # A batch that a worker had sent cannot be opened once it is dead. Where PyTorch has not seen the death yet
            # it raises what the connection says; seen while it handles that, its word of it may be lost for good.
            said = str(error)
            closed = "Caught " not in said and (not isinstance(error, RuntimeError) or "ancdata" in said)
            if closed or "exited unexpectedly" in said:
                patience_s = _DEATH_S if closed else 0.0
                if (ended := torch_private.end_of_worker(batches.delivering(), patience_s)) is not None:
                    raise ended from error
            raise

    def depth(self) -> Depth | None:
        """Where in the prefetch queue batches stand. None: there is no queue, or it does not tell."""
        return torch_private.queue_depth(self._iterator.delivering()) if self._iterator is not None else None

    def num_ahead(self) -> float | None:
        """Batches made and not handed out, those in the making by how far they have come. None: no worker tells."""
        workers = self._workers()
        if not workers or self._iterator is None:
            return None
        num_delivered: int = self._iterator.delivering().num_delivered
        return num_made(workers, time.monotonic()) - num_delivered

    def times(self) -> dict[str, Any]:
        """What the start took, what a batch takes and what steps that has, under the names of `TrainingRun`."""
        workers = self._workers()
        ready_s = max((each.ready_s - self._begun_s for each in workers if each.ready_s), default=0.0)
        first_s = min((each.first_s for each in workers if each.first_s), default=0.0)
        num_timed = sum(each.num_timed for each in workers)
        return {
            "ready_s": ready_s,
            "first_batch_s": ready_s + first_s if workers else self._first_s,
            "batch_s": sum(each.made_s for each in workers) / num_timed if num_timed else first_s,
            "steps": () if self._looks is None else self._looks.steps()[:KEPT_STEPS],
        }

    def _workers(self) -> list[Row]:
        """Empty: there are none."""
        return [] if self._iterator is None else self._iterator.workers()

    def close(self) -> None:
        if self._iterator is not None:  # by itself it ends as patiently as torch
            self._iterator._shutdown_workers(_PATIENCE_S)
        self._iterator = None


@contextmanager
def _unpicklable_named(parts: LoaderParts) -> Iterator[None]:
    """What starting workers raises names the part of the loader that cannot be pickled."""
    try:
        yield
    except (PicklingError, TypeError, AttributeError) as error:
        method = parts.multiprocessing_context or multiprocessing.get_start_method()
        for name in () if method == "fork" else ("collate_fn", "worker_init_fn", "dataset"):
            try:
                reduction.ForkingPickler.dumps(getattr(parts, name))
            except Exception:
                note_cause(
                    error,
                    f'The {name} of the loader cannot be pickled, which workers started with "{method}" need: {{}}. '
                    'Define it at the top level of a module, or use multiprocessing_context="fork"',
                )
                break
        raise


_MAX_STRETCH = 4.0  # times its length that a window may grow to span whole rounds of the workers


def window_ends(window_s: float, num_workers: int, elapsed_s: float, num_steps: int) -> bool:
    """Whether a window of so many steps is long enough and spans whole rounds of the workers, where that is affordable.

    The loader hands out one slow batch, then N - 1 fast ones; a window that cuts a round is too fast or too slow.
    """
    if num_steps < 1 or elapsed_s < window_s:
        return False
    whole_rounds = math.ceil(num_steps / max(1, num_workers)) * max(1, num_workers)
    return num_steps == whole_rounds or elapsed_s / num_steps * whole_rounds > _MAX_STRETCH * window_s


class Marks:
    """Ends of three parts of each step: the device may be idle until a batch is there, copies it, computes with it.

    A mark is a time, on CUDA an event on the stream. All are read after the synchronisation that ends the window.
    """

    def __init__(self, stream: Any = None) -> None:
        """Made right after a synchronisation, when the first window begins. ``stream``: CUDA's. None: there is none."""
        self._stream, self._marks = stream, list[Any]()
        self.end_part()

    def end_part(self) -> None:
        """On CUDA, once the device has done what was launched."""
        if self._stream is None:
            self._marks.append(time.monotonic())
        else:
            self._marks.append(self._stream.record_event(torch.cuda.Event(enable_timing=True)))  # type: ignore[no-untyped-call]

    def cut(self) -> dict[str, Any]:
        """Seconds of a window, by the names of `Window`."""
        pairs = pairwise(self._marks)
        parts = [b - a if self._stream is None else a.elapsed_time(b) / 1000 for a, b in pairs]
        del self._marks[:-1]
        return {"copy_s": sum(parts[1::3]), "compute_s": sum(parts[2::3])}


def time_training(
    trainer: Trainer, loader: EndlessLoader, window_s: float, line: Line, memory: DeviceMemory
) -> TrainingRun | TrialFailure:
    """Train on batches of this loader, and stream windows until the controller has seen enough.

    The trainer has to be warm. A failure where an epoch has no batch.
    """
    line.enter("first batch")
    try:
        batch = loader.next_batch()
    except NoBatchError as error:
        return TrialFailure(kind="unsupported", phase=line.phase, message=str(error))
    line.enter("training")
    memory.reset_peaks()
    trainer.step(trainer.receive(batch))  # uncounted: it waited for the first batch
    del batch
    loop = TimedLoop(trainer, loader, line)
    while (window := loop.window(window_s)) is not None:  # a window that the stop cuts short is dropped
        line.window(window)
    peak_bytes = memory.peak_bytes() if trainer.device.type == "cuda" else None
    return TrainingRun(peak_allocated_bytes=peak_bytes, **loader.times())


class _Edge(NamedTuple):
    """What is read where one window ends and the next begins."""

    at_s: float
    ahead: float | None
    depth: Depth | None
    halvings: float
    page_lock_s: float | None
    loss_is_finite: bool | None


class _Step(NamedTuple):
    """One step of a window."""

    wait_s: float
    num_samples: int
    num_tokens: int | None
    before: Depth | None
    """Of the queue, before the batch was asked for."""
    after: Depth | None
    """As the batch was handed out: whoever looked for it has taken all before it."""


class TimedLoop:
    """Training steps in windows that abut: where one ends the next begins. The first begins as this is made."""

    def __init__(self, trainer: Trainer, loader: EndlessLoader, line: Line) -> None:
        self._trainer, self._loader, self._line = trainer, loader, line
        trainer.synchronize()
        self._marks = Marks(torch.cuda.current_stream(trainer.device) if trainer.device.type == "cuda" else None)
        self._edge = self._look()

    def _look(self) -> _Edge:
        trainer, loader = self._trainer, self._loader
        at_s, ahead, depth = self._line.now(), loader.num_ahead(), loader.depth()
        return _Edge(at_s, ahead, depth, trainer.num_halvings(), page_lock_s(trainer.device), trainer.loss_is_finite())

    def window(self, window_s: float) -> Window | None:
        """Train until the window ends, after ``window_s`` at the least. None: the controller has seen enough.

        Where gradients of several batches are summed, a window holds whole rounds of them: each ends with a step of the
        optimizer, and the other batches take less.
        """
        steps = list[_Step]()
        accumulate, ends = self._trainer.accumulate, partial(window_ends, window_s, self._loader.config.num_workers)
        while len(steps) % accumulate or not ends(self._line.now() - self._edge.at_s, len(steps)):
            if self._line.stop_asked():
                return None
            steps.append(self._train_step())
            self._line.pulse()
        self._trainer.synchronize()
        begun, ended = self._edge, self._look()  # with the device idle; what is read is the next window's time
        self._edge = ended
        tokens = [step.num_tokens for step in steps if step.num_tokens is not None]
        unpinned = [step.before.unpinned for step in steps if step.before and step.before.unpinned is not None]
        looks = [depth for step in steps for depth in (step.before, step.after)]
        untaken = [depth.untaken for depth in looks if depth and depth.untaken is not None]
        num_taken = _num_taken(begun.depth, ended.depth, len(steps))
        return Window(
            start_s=begun.at_s,
            seconds=ended.at_s - begun.at_s,
            num_steps=len(steps),
            num_samples=sum(step.num_samples for step in steps),
            num_tokens=sum(tokens) if tokens else None,
            wait_s=sum(step.wait_s for step in steps),
            **self._marks.cut(),
            queue_start=begun.ahead,
            queue_end=ended.ahead,
            num_pinned=num_taken if unpinned else None,
            least_unpinned=min(unpinned, default=None),
            num_taken=num_taken if untaken else None,
            least_untaken=min(untaken, default=None),
            num_skipped_steps=_skipped(begun.halvings, ended.halvings, len(steps), accumulate),
            page_lock_s=increase(begun.page_lock_s, ended.page_lock_s),
            loss_is_finite=ended.loss_is_finite,
        )

    def _train_step(self) -> _Step:
        """A function of its own, so that the batch, here and on the device, is gone before the next is asked for."""
        trainer, loader, marks = self._trainer, self._loader, self._marks
        before, asked_s = loader.depth(), time.monotonic()
        batch = loader.next_batch()
        wait_s, after = time.monotonic() - asked_s, loader.depth()
        marks.end_part()
        on_device = trainer.receive(batch)
        marks.end_part()
        trainer.step(on_device)
        marks.end_part()
        return _Step(wait_s, trainer.num_samples(batch), num_tokens(batch), before, after)


def _num_taken(begun: Depth | None, ended: Depth | None, num_steps: int) -> int | None:
    """Batches that the pinning thread took in a window, or else the training process, from those who made them: they
    were handed out, or are there still."""
    if begun is None or ended is None:
        return None
    behind_before, behind = (depth.ready - (depth.untaken or 0) for depth in (begun, ended))
    return num_steps + behind - behind_before


def _skipped(before: float, after: float, num_steps: int, accumulate: int) -> int:
    """The scale was halved once for each skipped step of the optimizer's. One that fell to 0 tells no more: all."""
    return min(num_steps, accumulate * round(after - before)) if math.isfinite(after) else num_steps
