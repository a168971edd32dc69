"""What is not run, and why: bounds that the probes and the trials so far put on a configuration."""

from loadtune.probe.compute import compute_bound
from loadtune.probe.host_memory import host_memory_refusal, prefetch_bytes
from loadtune.records import Trial, TrialConfig, WorkloadFacts
from loadtune.stages.gpu_contention import excess_now
from loadtune.stages.run import Run
from loadtune.study.loader_bound import loader_bound, workers_bound
from loadtune.study.loop import Refusal
from loadtune.study.space import SearchSpace
from loadtune.units import bytes_text, rate_text


def refusal(
    run: Run, facts: WorkloadFacts, searched: SearchSpace, config: TrialConfig, best: float | None
) -> Refusal | None:
    """Why `config` is not run. None: it may run, and may beat `best` samples/s."""
    return _does_not_fit(run, facts, searched, config) or _cannot_win(run, facts, config, best)


def _does_not_fit(run: Run, facts: WorkloadFacts, searched: SearchSpace, config: TrialConfig) -> Refusal | None:
    excess = searched.excess(config)
    if excess > 0:
        return Refusal(reason=f"above the largest batch size that fits by {excess}", excess=excess)
    excess = excess_now(run, config.precision, config.batch_size)
    if excess > 0:
        return Refusal(reason=f"above the batch size that fits beside other processes by {excess}", excess=excess)
    no_room = host_memory_refusal(config.loader, facts.sample_bytes, run.found.host)
    if no_room is not None:  # virtual machines show 31 GiB at first and grow to 256: ask again before believing it
        no_room = host_memory_refusal(config.loader, facts.sample_bytes, run.host_now())
    if no_room is not None:
        return Refusal(reason=no_room, excess=1.0)
    if any(_lost_its_loss(trial, config) for trial in run.found.trials):
        return Refusal(reason="the loss in this precision or in fp32 became NaN or infinite in a trial", excess=1.0)
    ran_out = (_ran_out(trial, config, facts) for trial in run.found.trials)
    return next((refused for refused in ran_out if refused is not None), None)


def _lost_its_loss(trial: Trial, config: TrialConfig) -> bool:
    """Whether a loss that was not finite in this precision, or in fp32, rules the configuration out."""
    failed = trial.failure is not None and trial.failure.kind == "non_finite_loss"
    return failed and trial.config.precision in ("fp32", config.precision)


def _ran_out(trial: Trial, config: TrialConfig, facts: WorkloadFacts) -> Refusal | None:
    """What a trial that ran out of memory, whatever the probes said, rules out from then on.

    In its precision, as ceilings are: what differs in a recipe there is the memory format, as all of a precision's
    trials are compiled or none.
    """
    if trial.failure is None or not trial.failure.is_of_memory:
        return None
    if trial.failure.kind == "oom":
        excess = config.batch_size - trial.config.batch_size + 1
        if config.precision != trial.config.precision or excess <= 0:
            return None
        return Refusal(reason=f"batch {trial.config.batch_size} ran out of memory in a trial", excess=excess)
    failed, needed = (prefetch_bytes(each.loader, facts.sample_bytes) for each in (trial.config, config))
    if needed < failed:
        return None
    return Refusal(reason=f"a trial with {bytes_text(failed)} of prefetched batches ran out of memory", excess=1.0)


def _cannot_win(run: Run, facts: WorkloadFacts, config: TrialConfig, best: float | None) -> Refusal | None:
    found = run.found
    if best is None or config.batch_size == found.config.yours.batch_size:
        return None  # the user's own size has a winner of its own, which need not beat other sizes
    bound = _compute_bound(run, config)
    if bound is not None and bound < best:
        return Refusal(reason=f"at most {rate_text(bound)} by the compute-only rate", bound=bound)
    if found.device.kind != "cuda":
        return None
    bound = workers_bound(config.loader, found.trials, facts.least_sample_s)
    if bound is not None and bound < best:
        return Refusal(reason=f"at most {rate_text(bound)} by the time that a worker needs for a sample", bound=bound)
    bound = loader_bound(config, found.trials, lambda measured: _compute_bound(run, measured))
    if bound is not None and bound < best:
        return Refusal(reason=f"at most {rate_text(bound)} by what its loader delivered in other trials", bound=bound)
    return None


def _compute_bound(run: Run, config: TrialConfig) -> float | None:
    return compute_bound(run.found.compute_points, config.recipe, config.batch_size)
