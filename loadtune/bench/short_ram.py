"""A request that took nearly all of the machine's RAM, as a failure. The controller's side, so it needs no torch."""

from loadtune.bench.protocol import Request, TimeTraining
from loadtune.host.ram_guard import RamShort
from loadtune.records import LoaderConfig, TrialFailure
from loadtune.units import bytes_text

GROWTH_ADVICE = (
    "The usual cause is a dataset that keeps Python objects on itself, such as a list that __getitem__ appends to, or "
    "a cache without a limit. Keep nothing of a sample once it is returned."
)
COPY_ADVICE = (
    "Another cause are large Python lists or dicts in the dataset: workers started by fork copy them as they read "
    "them. Keep such data in a NumPy array or a tensor."
)


def loader_of(request: Request) -> LoaderConfig | None:
    """The loader that this request runs. None: it runs none, and keeps to a limit of its own."""
    return request.config.loader if isinstance(request, TimeTraining) else None


def ram_failure(
    short: RamShort, loader: LoaderConfig, phase: str, num_trained: int, sample_bytes: int | None
) -> TrialFailure:
    """`num_trained`: samples that were trained on by the end of the last window."""
    num_loaded = num_trained + (loader.num_prefetched + 1) * loader.batch_size
    sample = "" if sample_bytes is None else f", where one sample has {bytes_text(sample_bytes)}"
    who = "The training process and its workers" if loader.num_workers else "The training process"
    return TrialFailure(
        kind="host_oom",
        phase=phase,
        message=(
            f"{who} took {bytes_text(short.grown_bytes)} more RAM in this trial, about "
            f"{bytes_text(short.grown_bytes / num_loaded)} for each sample loaded{sample}. Only "
            f"{bytes_text(short.available_bytes)} of {bytes_text(short.limit_bytes)} RAM were left, so the trial was "
            f"ended before the kernel would kill a process. {GROWTH_ADVICE}"
            f"{f' {COPY_ADVICE}' if loader.num_workers else ''}"
        ),
        grown_bytes=short.grown_bytes,
    )
