"""What can run: by the memory ceilings, by the host's memory now, and by the trials that failed."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.contention import fits_now
from loadtune.probe.host_memory import host_memory_refusal, prefetch_bytes, shm_refusal
from loadtune.records import HostFacts, Trial, TrialConfig, WorkloadFacts
from loadtune.run import Run


def feasible(run: Run, facts: WorkloadFacts, configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    failed = [trial for trial in run.standing if trial.failure is not None]
    fits = {size: fits_now(run, *size) for size in {(config.precision, config.batch_size) for config in configs}}
    able = [
        config
        for config in configs
        if fits[config.precision, config.batch_size] and not any(_rules_out(trial, config, facts) for trial in failed)
    ]
    if all(_has_room(config, facts, run.host) for config in able):
        return able
    now = run.host_now()  # virtual machines show 31 GiB at first and grow to 256
    return [config for config in able if _has_room(config, facts, run.host) or _has_room(config, facts, now)]


def tell_shm(run: Run, facts: WorkloadFacts, most_workers: int) -> None:
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


def _has_room(config: TrialConfig, facts: WorkloadFacts, host: HostFacts) -> bool:
    return host_memory_refusal(config.loader, facts.sample_bytes, host) is None


def _rules_out(trial: Trial, config: TrialConfig, facts: WorkloadFacts) -> bool:
    """Whether the failure of a trial says that a configuration cannot run either."""
    failure, tried = trial.failure, trial.config
    if failure is None:
        return False
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
