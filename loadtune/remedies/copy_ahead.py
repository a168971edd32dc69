"""Copy the next batch to the GPU on a stream of its own, while the current one is trained on."""

from dataclasses import replace
from typing import TYPE_CHECKING

from loadtune.model.resources import Job
from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    from loadtune.workload import Workload

CODE = """\
def copied_ahead(loader, device):
    stream, waiting = torch.cuda.Stream(device), None
    for batch in loader:
        with torch.cuda.stream(stream):
            copied = [part.to(device, non_blocking=True) for part in batch], stream.record_event()
        if waiting is not None:
            yield ready(*waiting)
        waiting = copied
    if waiting is not None:
        yield ready(*waiting)

def ready(batch, copied):
    torch.cuda.current_stream().wait_event(copied)
    for part in batch:
        part.record_stream(torch.cuda.current_stream())
    return batch

for inputs, targets in copied_ahead(loader, device):
    ..."""


class CopyAhead(Remedy):
    title = "copy one batch ahead on a side stream"
    changes = "one more batch of GPU memory"
    needs_pinned = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        """Copies out of memory that is not page-locked cannot overlap with anything."""
        return situation.config if situation.on_gpu and situation.config.loader.pin_memory else None

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.remedies.leaves import is_pair_of_tensors, small_batch

        if not workload.epoch.indices or not is_pair_of_tensors(small_batch(workload)):
            raise NotApplicableError("a batch is no pair (inputs, targets) of tensors")
        return replace(workload, copy_ahead=True)

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        return replace(job, copies_ahead=True)

    def code(self, situation: Situation, seen: Examined) -> str:
        return CODE
