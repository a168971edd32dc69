"""What can run: by the memory ceilings, by the host's memory now, and by the trials that failed."""

from collections.abc import Sequence

from loadtune.probe.host_memory import host_memory_refusal, prefetch_bytes
from loadtune.records import HostFacts, Trial, TrialConfig, WorkloadFacts
from loadtune.stages.gpu_contention import excess_now
from loadtune.stages.run import Run


def feasible(run: Run, facts: WorkloadFacts, configs: Sequence[TrialConfig]) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    able = [
        config
        for config in configs
        if excess_now(run, config.precision, config.batch_size) <= 0
        and not any(_rules_out(trial, config, facts) for trial in run.found.trials)
    ]
    with_room = [config for config in able if _has_room(config, facts, run.found.host)]
    if len(with_room) == len(able):
        return able
    now = run.host_now()  # virtual machines show 31 GiB at first and grow to 256
    return [config for config in able if _has_room(config, facts, run.found.host) or _has_room(config, facts, now)]


def _has_room(config: TrialConfig, facts: WorkloadFacts, host: HostFacts) -> bool:
    return host_memory_refusal(config.loader, facts.sample_bytes, host) is None


def _rules_out(trial: Trial, config: TrialConfig, facts: WorkloadFacts) -> bool:
    """Whether the failure of a trial says that a configuration cannot run either."""
    failure, tried = trial.failure, trial.config
    if failure is None:
        return False
    if failure.kind == "non_finite_loss":
        return tried.precision in ("fp32", config.precision)
    if failure.kind == "oom":  # in its precision, as ceilings are
        return config.precision == tried.precision and config.batch_size >= tried.batch_size
    if failure.is_of_memory:
        return prefetch_bytes(config.loader, facts.sample_bytes) >= prefetch_bytes(tried.loader, facts.sample_bytes)
    return config == tried
