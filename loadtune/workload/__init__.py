"""What is trained: names, import paths and live objects become a dataset, a model, a loss and an optimizer.

In: a `WorkloadSpec` with names, and the caller's objects as bytes. Out: a `Workload` that can be trained, or a
`WorkloadError` that says what was found, what is allowed and what to do. Everything here needs torch and runs in the
training process.
"""

from loadtune.workload.batches import (
    PAIR,
    Batch,
    Places,
    are_equal,
    is_pair,
    map_tensors,
    moved,
    num_bytes,
    num_tokens,
    own_structure,
    sample_shape,
    structure_text,
    tensors_of,
    uncounted_text,
)
from loadtune.workload.build import Workload, build_workload, code_of
from loadtune.workload.datasets import RandomSamples, ToRgb, transform_text
from loadtune.workload.loaders import Endless, LoaderParts, named_collate
from loadtune.workload.samples import (
    batch_of,
    fetch_samples,
    find_places,
    make_batch,
    owner_of,
    reads_at_once,
    small_batch,
    stream_samples,
)
from loadtune.workload.tasks import (
    AUTOCAST_DTYPES,
    IGNORED_TARGET,
    class_dimension,
    class_loss,
    make_optimizer,
    model_logits,
)
from loadtune.workload.user_code import call_named, cause, last_line, note_cause, note_index, user_traceback
