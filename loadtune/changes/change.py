"""Changes of the user's code, outside of DataLoader's arguments: what each of them has, and those that are offered.

A change answers, in this order: does it apply (`offer`), how is it used (`apply`, in the training process), what would
it gain (`job`), what has the user to write (`code`). Predicting, measuring and reporting are the same for all.
Needs no torch: methods that run in the training process import it when they are called.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from loadtune.model.resources import Job
from loadtune.records.config import Precision, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.loading import FARTHEST, Examined, NotApplicableError
from loadtune.units import bytes_text

if TYPE_CHECKING:
    from loadtune.changes.way import Way

FEWEST_EXAMINED, MOST_EXAMINED = 8, 64
"""Samples whose values are compared before a change is tried, and whose loading is timed at a time."""

EXAMINED_S = 1.0
"""Of slow samples there are as many as load in so many seconds."""


def num_examined(sample_s: float) -> int:
    """Of samples that take so many seconds to load."""
    return max(FEWEST_EXAMINED, min(MOST_EXAMINED, int(EXAMINED_S / max(1e-9, sample_s))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a change may look at before it is tried."""

    config: TrialConfig
    """The best configuration, with the changes that were kept so far."""
    spec: WorkloadSpec
    facts: WorkloadFacts
    device: Device
    precisions: tuple[Precision, ...] = ()
    """That the search could choose."""


class Change:
    """The base of all. A method that is left out changes nothing."""

    name: str
    """In configurations and results: ``uint8_transfer``."""
    title: str
    """What to do, in a few words."""
    changes: str = "nothing"
    """What changes for training. Measured differences of samples are added."""
    loads: bool = True
    """Whether it changes what is loaded: the training process then compares samples and times loading. False: it
    changes what only concerns compute, and its steps are timed without a loader before it is tried."""

    def offer(self, situation: Situation) -> TrialConfig | None:
        """The configuration to try, without this change's name in it. None: it does not apply."""
        return situation.config

    keeps: bool = False
    """Whether it takes memory for the whole data set. Such a change comes after those that take none."""
    farthest: float = FARTHEST
    """See there; of this change."""

    def apply(self, way: "Way") -> "Way":
        """The way with this change, in the process that loads. Raises NotApplicableError."""
        return way

    def compared(self, before: "Way", after: "Way") -> "tuple[Way, Way]":
        """The ways without the change and with it, as their samples are compared."""
        return before, after

    def job(self, job: Job, seen: Examined) -> Job:
        """The job as the throughput model takes it.

        By default what was timed of loading, in proportion to the time without the change; what the device has to do
        beside is added to its steps.
        """
        before, after = seen.before, seen.after
        assert before is not None
        assert after is not None
        wait_s = max(0.0, job.sample_s - job.sample_cpu_s)
        cpu_s = job.sample_cpu_s * after.sample_cpu_s / before.sample_cpu_s
        waited, waits = before.sample_s - before.sample_cpu_s, after.sample_s - after.sample_cpu_s
        kept_s = wait_s * min(1.0, waits / waited) if waited > 0.1 * before.sample_s else wait_s
        return replace(
            job,
            sample_cpu_s=cpu_s,
            sample_s=cpu_s + kept_s,
            sample_bytes=job.sample_bytes * after.sample_bytes / before.sample_bytes,
            compute={
                name: tuple((size, max(0.5 * each, each + after.prepare_s - before.prepare_s)) for size, each in curve)
                for name, curve in job.compute.items()
            },
        )

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        """Lines of Python to paste; asked in the process that loads, of the ways without the change and with it.
        ``is_whole``: they reach into the ``dataset``; else they show the pattern."""
        return ""

    def code(self, situation: Situation, seen: Examined) -> str:
        """The same with the settings of the configuration. ``seen.code`` is what `own_code` returned."""
        return seen.code


class OfImages(Change):
    """A change of how images are decoded, transformed or sent."""

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if len(situation.facts.input_shape) == 3 else None

    def apply(self, way: "Way") -> "Way":
        from loadtune.changes import images

        return images.apply(self.name, way)

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        from loadtune.changes import images

        return images.code(before, after, is_whole=is_whole)


class DraftDecoding(OfImages):
    """JPEG files decoded at a reduced size: Pillow's ``draft`` leaves out what a smaller image does not need."""

    name = "draft_decoding"
    title = "decode JPEG at reduced size (Pillow's draft)"
    changes = "crops are taken from a reduced image, so small ones are enlarged from fewer pixels"
    farthest = 0.2

    def compared(self, before: "Way", after: "Way") -> "tuple[Way, Way]":
        """A random crop of a reduced image is another one."""
        from loadtune.changes import images

        return images.uncropped(before), images.uncropped(after)


class TensorDecoding(OfImages):
    """Images decoded by torchvision, and transformed as uint8 tensors by its transforms v2, in place of Pillow."""

    name = "tensor_decoding"
    title = "decode with torchvision, transform uint8 tensors"


class Uint8Transfer(OfImages):
    """Batches are sent to the GPU as bytes, which makes floats there: a quarter of the bytes, no floats in workers."""

    name = "uint8_transfer"
    title = "send uint8 images, make floats on the GPU"
    changes = "the GPU holds each image twice, as bytes and as floats, in 25% more memory"

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        has_floats = len(facts.input_shape) == 3 and facts.input_dtype.startswith("float")
        return situation.config if has_floats and situation.device.kind == "cuda" else None


class OfLibrary(Change):
    """A change of what another library than torchvision does for a sample. What is kept of samples fills a cache: it is
    tried with few samples in place of all, so that it is full from the start."""

    kind: str
    """Class of `loadtune.changes.way`, and beside it the lines to paste."""
    lines: str = ""
    unused: str
    """Why it cannot be used, where the library is not."""
    keeps = True

    def apply(self, way: "Way") -> "Way":
        from loadtune.changes import way as ways

        made = getattr(ways, self.kind)()
        if not made.replacements():
            raise NotApplicableError(self.unused)
        few = ways.few_of(way.indices, MOST_EXAMINED)
        given: dict[str, Any] = {"others": (*way.how.others, made)}
        changed = way.with_how(**given, **({"stand_ins": tuple(few)} if self.keeps else {}))
        num_kept = list[int]()
        for _ in range(2):
            for index in few if self.keeps else few[:FEWEST_EXAMINED]:
                changed.load([index])
            num_kept.append(len(made.kept))
        if num_kept[0] != num_kept[1]:
            raise NotApplicableError("what it reads for a sample is drawn at random")
        if not made.num_read:
            raise NotApplicableError(self.unused)
        if not self.keeps:
            return changed
        needed = self._needed_bytes(changed, way)
        if needed > way.memory_bytes:
            most = bytes_text(way.memory_bytes)
            raise NotApplicableError(f"it would take {bytes_text(needed)} of shared memory, and {most} may be used")
        return replace(changed, indices=few)

    def _needed_bytes(self, after: "Way", before: "Way") -> int:
        """For the whole data set."""
        num_samples = before.num_samples or len(before.indices)
        kept: Any = after.how.others[-1]
        num_kept = len(set(after.how.stand_ins or (0,)))  # indices of several epochs are there more than once
        return int(1.05 * kept.num_bytes() / num_kept * num_samples)

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        from loadtune.changes import way as ways

        return str(getattr(ways, self.lines))


class TableToArrays(OfLibrary):
    """Rows of a pandas table come from arrays that are made once, in place of a new Series for each row."""

    name = "table_to_arrays"
    title = "take rows from NumPy arrays, not from pandas"
    kind, lines = "Rows", "ROWS_CODE"
    unused = "the dataset reads no rows of a pandas DataFrame"
    keeps = False


class TokenizedOnce(OfLibrary):
    """Texts are tokenized once, not in each epoch."""

    name = "tokenized_once"
    title = "tokenize all texts once"
    changes = "all tokens are kept in memory"
    kind, lines = "Tokens", "TOKENS_CODE"
    unused = "the dataset calls no tokenizer of transformers"


class KeptImages(OfLibrary):
    """Decoded images are kept in memory that workers share; what is random is done to them in each epoch."""

    name = "kept_images"
    title = "keep decoded images in memory"
    changes = "the first epoch is as slow as before; all decoded images are kept in shared memory"
    kind = "Images"
    unused = "the dataset opens no RGB files with Pillow's Image.open"

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        from loadtune.changes import images

        return images.kept_code(before, self._needed_bytes(after, before), is_whole=is_whole)


_SHUFFLED = """\
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
sampler, drop_last = RandomSampler(dataset), True"""

_AS_DRAWN = """\
from torch.utils.data import BatchSampler, DataLoader
own = loader.batch_sampler  # of your loader as it is: the samples stay in its order
sampler, drop_last = own.sampler, own.drop_last
kept = {"generator": loader.generator, "worker_init_fn": loader.worker_init_fn}"""


class BatchedFetch(Change):
    """One indexing call a batch instead of one a row: for datasets that can be indexed with a list."""

    name = "batched_fetch"
    title = "fetch a batch with one indexing call"

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        return situation.config if facts.fixed_batch_size is None and facts.dataset_length is not None else None

    def apply(self, way: "Way") -> "Way":
        from torch.utils.data import default_collate

        from loadtune.workload.batches import are_equal
        from loadtune.workload.loaders import owner_of

        if way.loader.collate_fn not in (None, default_collate):
            raise NotApplicableError("its loader has a collate function of its own")
        if hasattr(owner_of(way.loader.dataset), "__getitems__"):
            raise NotApplicableError("the dataset has __getitems__, so PyTorch already fetches a batch with one call")
        indices = [way.indices[at] for at in (2, 0, 1) if at < len(way.indices)]  # as they are shuffled
        changed = way.with_parts(batched_fetch=True, collate_fn=None)
        try:
            at_once = changed.load(indices)
        except Exception as error:
            raise NotApplicableError("the dataset cannot be indexed with a list in any order") from error
        if not are_equal(at_once, way.load(indices)):
            raise NotApplicableError("indexed with a list, the dataset returns other values than one by one")
        return changed

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        """How samples are drawn."""
        return _AS_DRAWN if before.has_loader else _SHUFFLED

    def code(self, situation: Situation, seen: Examined) -> str:
        loader = situation.config.loader
        arguments = [f"{name}={value!r}" for name, value in loader.kwargs().items() if name != "batch_size"]
        arguments += ["**kept"] if seen.code == _AS_DRAWN else []
        batches = f"batches = BatchSampler(sampler, batch_size={loader.batch_size}, drop_last=drop_last)"
        made = f"loader = DataLoader(dataset, sampler=batches, batch_size=None, {', '.join(arguments)})"
        return "\n".join([seen.code, batches, made])


class FusedOptimizer(Change):
    """Fused SGD under fp16 takes the scaler's flag on the device, so that no step waits for the device.

    Plain, a fused SGD with momentum does not survive the first step that a GradScaler skips: its momentum is not set
    then. Momentum that begins at zero is set before.
    """

    name = "fused_optimizer"
    title = "fused SGD, momentum set to zero first"
    changes = "rounding of the optimizer's step"
    _LINES = """\
# once, before the training loop, in place of your optimizer
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True)
for group in optimizer.param_groups:  # GradScaler may skip the first step, which would leave the momentum unset
    for parameter in group["params"]:
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)"""
    loads = False

    def offer(self, situation: Situation) -> TrialConfig | None:
        """With fp16 where that is not the best precision, but may be without its waits."""
        config = situation.config
        may = config.recipe.waits_each_step if config.precision == "fp16" else "fp16" in situation.precisions
        if situation.device.kind != "cuda" or situation.spec.named_optimizer != "sgd" or not may:
            return None
        return replace(config, recipe=replace(config.recipe, precision="fp16", fused_optimizer=True))

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        return self._LINES

    def job(self, job: Job, seen: Examined) -> Job:
        return replace(job, syncing=job.syncing - {"fp16"})


class OpencvThreads(Change):
    """One OpenCV thread in each worker, its own: by itself OpenCV starts as many as there are cores, in every worker.

    ``setNumThreads(0)``, not 1: with 1 a worker that was forked from a process that used OpenCV's threads waits for
    ever in its next call (seen with OpenCV 5.0).
    """

    name = "opencv_threads"
    title = "one OpenCV thread in each worker"

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if situation.config.loader.num_workers else None

    def apply(self, way: "Way") -> "Way":
        cv2 = sys.modules.get("cv2")
        if cv2 is None or cv2.getNumThreads() <= 1:
            raise NotApplicableError("the dataset does not use OpenCV, or uses one thread already")
        changed = way.with_parts(worker_init_fn=partial(one_thread, way.loader.worker_init_fn))
        return replace(changed, within=within_one_thread)

    def own_code(self, before: "Way", after: "Way", *, is_whole: bool = True) -> str:
        is_own = before.loader.worker_init_fn is not None
        lines = [
            "import cv2",
            *(["init_before = loader.worker_init_fn  # of your loader as it is"] if is_own else []),
            "",
            "def one_thread(worker_id):",
            "    cv2.setNumThreads(0)",
            *(["    init_before(worker_id)"] if is_own else []),
            "",
            "loader = DataLoader(dataset, worker_init_fn=one_thread, ...)",
        ]
        return "\n".join(lines)


@contextmanager
def within_one_thread() -> Iterator[None]:
    cv2 = sys.modules["cv2"]
    before = cv2.getNumThreads()
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        cv2.setNumThreads(before)


def one_thread(then: Callable[[int], None] | None, worker_id: int) -> None:
    """As `partial` makes a ``worker_init_fn`` of it that pickles."""
    import_module("cv2").setNumThreads(0)
    if then is not None:
        then(worker_id)


CHANGES: dict[str, Change] = {
    change.name: change
    for change in (
        DraftDecoding(),
        TensorDecoding(),
        Uint8Transfer(),
        TableToArrays(),
        TokenizedOnce(),
        KeptImages(),
        BatchedFetch(),
        FusedOptimizer(),
        OpencvThreads(),
    )
}
"""By name, in the order in which they are applied where several are combined."""


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """These names in the order in which they are applied."""
    return tuple(name for name in CHANGES if name in names)
