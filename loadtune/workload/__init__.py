"""What is trained: names and import paths become a dataset, a model, a loss and an optimizer.

Comes in: a `WorkloadSpec`, as strings. Goes out: a `Workload` that the bench can train on, or a `WorkloadError` that
says what was found, what is allowed and what to do. Runs in the bench's process only: everything here needs torch.
"""

from loadtune.workload.build import Workload, build_workload
from loadtune.workload.factories import is_import_path
from loadtune.workload.optimizers import make_optimizer
from loadtune.workload.samples import TracedDataset, collate_samples, fetch_samples, sample_text
from loadtune.workload.tasks import Batch, Task, class_logits
from loadtune.workload.user_code import last_line, sample_index, user_traceback

__all__ = [
    "Batch",
    "Task",
    "TracedDataset",
    "Workload",
    "build_workload",
    "class_logits",
    "collate_samples",
    "fetch_samples",
    "is_import_path",
    "last_line",
    "make_optimizer",
    "sample_index",
    "sample_text",
    "user_traceback",
]
