"""What can run: by the memory ceilings, by what other processes took since, by the host's memory now, and by the trials
that failed."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.limits.host_memory import host_memory_refusal, prefetch_bytes, shm_refusal
from loadtune.limits.runs import ROOM
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import MemoryCeiling
from loadtune.run import Run
from loadtune.search.span import largest_batch, named_sizes
from loadtune.units import bytes_text

LOST, LOST_BYTES = 0.01, 1 << 30
"""Share of the budget, or bytes, that have to be gone before anything is said: a training that was replaced takes its
context anew, 0.75 GiB on an H200, and libraries keep workspaces."""


def feasible(run: Run, facts: WorkloadFacts, configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    ceilings = {ceiling.precision: ceiling for ceiling in run.ceilings}
    sizes = {(config.precision, config.batch_size) for config in configs}
    fits = {each: each[0] not in ceilings or _fits(run, ceilings[each[0]], each[1]) for each in sizes}
    failed = [(trial.config, trial.failure) for trial in run.standing if trial.failure is not None]
    able = [
        config
        for config in configs
        if fits[config.precision, config.batch_size]
        and not any(_rules_out(tried, failure, config, facts) for tried, failure in failed)
    ]
    if all(_has_room(config, facts, run.host) for config in able):
        return able
    now = run.host_now()  # virtual machines show 31 GiB at first and grow to 256
    return [config for config in able if _has_room(config, facts, run.host) or _has_room(config, facts, now)]


def _fits(run: Run, ceiling: MemoryCeiling, batch_size: int) -> bool:
    """Below the ceiling, and into what others have left, by the line through the sizes that ran."""
    if batch_size > largest_batch(run, ceiling):
        return False
    if not run.lost_bytes or ceiling.bytes_per_sample is None or ceiling.budget_bytes is None:
        return True
    needed = (ceiling.fixed_bytes or 0.0) + ceiling.bytes_per_sample * batch_size
    room = 1.0 if batch_size in named_sizes(run) else ROOM
    return needed <= room * ceiling.budget_bytes - run.lost_bytes


def _has_room(config: TrialConfig, facts: WorkloadFacts, host: HostFacts) -> bool:
    return host_memory_refusal(config.loader, facts.sample_bytes, host) is None


def _rules_out(tried: TrialConfig, failure: TrialFailure, config: TrialConfig, facts: WorkloadFacts) -> bool:
    """Whether the failure of a trial says that a configuration cannot run either."""
    if tried.remedies and not failure.is_of_memory:
        return set(tried.remedies) <= set(config.remedies)
    if tried.remedies and tried.remedies != config.remedies:
        return False
    if failure.kind == "non_finite_loss":
        return tried.precision in ("fp32", config.precision)
    if failure.kind == "oom":  # in its precision, as ceilings are
        return config.precision == tried.precision and config.batch_size >= tried.batch_size
    if failure.is_of_memory:
        return prefetch_bytes(config.loader, facts.sample_bytes) >= prefetch_bytes(tried.loader, facts.sample_bytes)
    return config == tried


def note_lost_memory(run: Run) -> None:
    """Read the GPU's free memory again: what others took since the probe lowers the bound from here on."""
    free, budget = run.free_gpu_bytes(), max((ceiling.budget_bytes or 0 for ceiling in run.ceilings), default=0)
    if run.free_bytes is None or free is None:
        return
    unused = 0 if run.config.max_gpu_memory_bytes is None else max(0, run.free_bytes - budget)
    lost_bytes = run.free_bytes - free - unused
    if lost_bytes <= max(LOST * budget, LOST_BYTES, run.lost_bytes):
        return
    run.lost_bytes = lost_bytes
    is_late = run.stage_name == "confirm"
    run.note(
        f"Another process has taken {bytes_text(lost_bytes)} of the GPU's memory since memory was probed. Batch sizes "
        f"that no longer fit {'may run out of memory in the confirmation' if is_late else 'are not tried'}; run again "
        "when no other process uses the GPU."
    )


def note_shm(run: Run, facts: WorkloadFacts, most_workers: int) -> None:
    """Name workers that do not fit into /dev/shm: the user's own, or else as many as there are cores, or may be."""
    now = run.host_now()
    if run.yours is None:
        return
    own = run.yours.loader
    most = replace(own, num_workers=min(most_workers, now.num_usable_cores))
    refusals = (shm_refusal(loader, facts.sample_bytes, now) for loader in (own, most))
    refused = next((each for each in refusals if each is not None), None)
    if refused is not None:
        run.note(f"{refused} What does not fit was not tried.")
