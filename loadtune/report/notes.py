"""What a run says while it goes on: what its stages found, a line each; and what a reader has to know before trusting
the answer, in whole sentences. Without these a configuration would be missing and nobody would know why.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median_low

from loadtune.decide.final import Verdict
from loadtune.decide.space import ASSUMED_BATCH
from loadtune.records.config import TrialConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, RecipeChoice
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import Attempt, Finalist, Trial, Winner, failures_of, finalist_of
from loadtune.report.sentences import (
    FAILURE_TEXT,
    QUIETER,
    busy_text,
    failures_text,
    limit_text,
    non_finite_text,
    precision_name,
    recipe_line,
    settings_text,
    unconfirmed_text,
)
from loadtune.run.state import State
from loadtune.units import bytes_text, counted, percent_text, rate_text, seconds_text

SKIPPED = 0.1
"""Share of the winner's timed steps from which on skipped ones are reported: fewer change its rate less than noise."""

_UNEVEN = 1.1
"""Times the least memory of a rank, from which on it is told."""

_LEAST_BYTES, _LEAST_SHARE = 1024, 0.01
"""Read for each sample, and of its size: less is messages between processes, and says nothing of samples."""


def line(state: State, found: object) -> str:
    """What a stage found, in a line; a sentence as it is."""
    match found:
        case WorkloadFacts():
            return _workload_line(found)
        case RecipeChoice():
            return recipe_line(found)
        case MemoryCeiling():
            return _ceiling_line(found, state.device.kind)
        case tuple():  # the compute curve of a recipe
            return _curve_line(found)
        case Trial():
            return f"trial {found.number + 1}/{state.config.num_trials}: {_outcome_line(found)}"
        case Attempt():
            return _outcome_line(found)
    return str(found)


def cautions(state: State, found: object) -> Iterator[str]:
    """What a reader has to know of it before trusting the answer, in whole sentences; a sentence as it is."""
    match found:
        case WorkloadFacts():
            yield from _of_workload(found)
            if state.device.kind == "cuda" and not state.config.workload.command:
                yield from _one_of_several(state.host)
        case TrialConfig():  # the baseline
            yield from _of_baseline(state, found)
        case Verdict():
            yield from filter(None, doubts(found, state.host, state.best, state.best_at_your_batch))
        case _:
            yield str(found)


def _workload_line(facts: WorkloadFacts) -> str:
    shape = "×".join(map(str, facts.input_shape))
    samples = "a stream of samples" if facts.dataset_length is None else f"{facts.dataset_length:,} samples"
    trained = f"; the model has {facts.num_parameters:,} parameters" if facts.num_parameters else ""
    return f"{samples} of {shape} {facts.input_dtype}, loaded in {seconds_text(facts.sample_s)} each{trained}"


def _ceiling_line(ceiling: MemoryCeiling, device_kind: str) -> str:
    peak = f" (peak {bytes_text(ceiling.peak_bytes)})" if ceiling.peak_bytes else ""
    fit = f"train{peak}" if ceiling.verified else "are predicted to fit"
    return (
        f"{precision_name(ceiling.precision)}: batch sizes up to {ceiling.batch_size} {fit}, up to "
        f"{ceiling.safe_batch_size} with 5% to spare; limited by {limit_text(ceiling.limit, device_kind)}"
    )


def _curve_line(curve: Sequence[ComputePoint]) -> str:
    best = max(curve, key=lambda point: point.samples_per_s)
    return (
        f"{precision_name(best.recipe.precision)}: compute-only rate {rate_text(best.samples_per_s)} at batch "
        f"{best.batch_size}, the fastest of {counted(len(curve), 'size')}"
    )


def _outcome_line(ran: Attempt) -> str:
    what, failure, measured = settings_text(ran.config), ran.failure, ran.measurement
    if failure is not None or measured is None:
        return f"{what}: {FAILURE_TEXT[failure.kind]} ({failure.message})" if failure else what
    text, seen = f"{what}: {rate_text(measured.samples_per_s)}", measured.telemetry
    if seen is None:
        return text
    gpu = {"GPU": seen.gpu_utilization_fraction, "SM": seen.gpu_sm_activity_fraction}
    used = [f"{name} {percent_text(share)}" for name, share in gpu.items() if share is not None]
    return ", ".join((text, *used, f"CPU {percent_text(seen.cpu_utilization_fraction)}"))


# What to know before trusting the answer


def _one_of_several(host: HostFacts) -> Iterator[str]:
    """Of a described job on a GPU: what is not known of training on all."""
    num, cores = len(host.gpus), host.num_usable_cores
    if num > 1:
        yield (
            f"One of {num} GPUs was measured, with all {counted(cores, 'core')}. Of {num} ranks each has "
            f"{max(1, cores // num)}, and they wait for each other: loadtune run -- torchrun --nproc-per-node {num} … "
            "measures that."
        )


def _of_workload(facts: WorkloadFacts) -> Iterator[str]:
    """What is not measured of the user's loader, or ruled out by it, and why; what a batch's memory was probed with."""
    if facts.num_ranks > 1:
        yield f"{facts.num_ranks} ranks train in step: batch size, workers and samples/s are those of one rank."
    budgets = sorted(facts.budgets_bytes.items(), key=lambda each: each[1])
    if budgets and budgets[-1][1] > _UNEVEN * budgets[0][1]:
        texts = [f"rank {number} may take {bytes_text(size)}" for number, size in (budgets[0], budgets[-1])]
        yield f"R{texts[0][1:]} of memory, which bounds the batch size of all ranks; {texts[1]}."
    if facts.cudnn_benchmark:
        yield "torch.backends.cudnn.benchmark was off while settings were measured: your steps may be faster."
    if facts.loader_class is not None:
        yield (
            f"Your loader is a {facts.loader_class}. It was measured as a torch.utils.data.DataLoader with the same "
            "dataset, sampler and functions: what the class does beyond that was not measured."
        )
    if facts.own_precision is not None and len(facts.precisions) == 1:
        yield "The precision was not tuned: the script or the device allows one only."
    if facts.fixed_batch_size is not None:
        or_script = "" if facts.loader_place is None else ", or the script does not train on larger ones"
        yield f"The batch size was not tuned: your loader's batch sampler or dataset makes the batches{or_script}."
    if facts.max_workers is not None:
        most = facts.max_workers
        named, tried = ("one", "0 and 1 worker were") if most == 1 else (most, f"0 to {most} workers were")
        yield (
            f"The stream does not split its samples among workers, so more than {named} would repeat them: {tried} "
            "tried. Split the samples with torch.utils.data.get_worker_info() to try more."
        )
    if facts.largest_sample_bytes is not None:
        yield (
            "Samples differ in size. Memory was probed with the largest of those that were read, "
            f"{bytes_text(facts.largest_sample_bytes)}; their mean is {bytes_text(facts.sample_bytes)}. A larger one "
            "may not fit: limit the size of samples, or use a smaller batch."
        )


def _of_baseline(state: State, own: TrialConfig) -> Iterator[str]:
    given, precision = state.config.yours, own.precision
    if given.batch_size is None and own.batch_size < ASSUMED_BATCH:
        yield (
            f"The baseline has batch size {own.batch_size} instead of {ASSUMED_BATCH}: a step of a larger "
            "batch takes more than a second on this machine, or does not fit. Give your own with --batch-size."
        )
    if given.pin_memory and state.device.kind != "cuda":
        yield "pin_memory has no effect without a GPU; the baseline is measured without it."
    ceiling = next((each for each in state.ceilings if each.precision == precision), None)
    if ceiling is not None and ceiling.limit in ("memory", "failure") and own.batch_size > ceiling.batch_size:
        yield (
            f"Your batch size {own.batch_size} is above {ceiling.batch_size}, the largest that trained in {precision}"
            " here. The confirmation tries it all the same."
        )


def doubts(verdict: Verdict, host: HostFacts, *answers: Winner | None) -> Iterator[str | None]:
    """Of a confirmation and its ``answers``, the best first: steps that were skipped; what failed, in the search too;
    what is not confirmed for another reason; what other processes used, unless one of the answers itself says so."""
    best, busy = finalist_of(verdict.finalists, answers[0]), busy_text(verdict.finalists, host)
    yield None if best is None else _skipped_text(best)
    yield from _failure_notes(verdict, has_answer=best is not None)
    if busy is not None and not any(each.inconclusive for each in answers if each is not None):
        yield f"{busy} The true throughput may be higher. {QUIETER}"


def _skipped_text(best: Finalist) -> str | None:
    """Steps without the optimizer are faster than those of a training."""
    windows = [window for each in best.runs for window in each.windows]  # what settled before them is in no rate
    num_skipped, num_steps = sum(w.num_skipped_steps for w in windows), sum(w.num_steps for w in windows)
    if num_skipped <= SKIPPED * num_steps:
        return None
    return (
        f"GradScaler skipped the optimizer in {num_skipped} of the {counted(num_steps, 'step')} that were timed of "
        "the best configuration. Skipped steps are faster than others. Check that the model trains in fp16, or "
        "leave fp16 out with --precision."
    )


def _failure_notes(verdict: Verdict, *, has_answer: bool) -> Iterator[str | None]:
    """What failed in the search and in the confirmation, and what is not confirmed for another reason."""
    trials, ran, yours = verdict.trials, {finalist.config for finalist in verdict.finalists}, verdict.yours
    of_workers, failed = _worker_note(trials), failures_of((*verdict.ran[::-1], *trials[::-1]))
    bad = {config.precision: (config, f) for config, f in failed if f.kind == "non_finite_loss"}
    told = {"fp32"} if "fp32" in bad else set(bad)  # which rules out the others too
    yield of_workers
    yield from (non_finite_text(*each) for precision, each in bad.items() if precision in told)
    for config, failure in {each.config: each.failure for each in verdict.ran}.items():
        if failure is not None and config not in ran and not (of_workers and config.loader.num_workers):
            then = ", so there is no speed-up to report" if config == yours else ""
            why = f"({failure.kind}: {failure.message.rstrip('.')})"
            yield f"{_named(config, yours)} did not run in the confirmation {why}{then}."
    for finalist in verdict.finalists:
        named, doubt = _named(finalist.config, yours), finalist.unconfirmed
        if doubt is None and finalist.failures:
            what = failures_text(len(finalist.runs), finalist.failures)
            yield f"{named} is judged by the runs that did not fail: {what}."
        elif doubt is not None and doubt.reason != "non_finite_loss":  # which was said once for all
            yield f"{named} is not confirmed: {unconfirmed_text(finalist)}"

    if has_answer and not any(trial.measurement for trial in trials) and ran == {yours}:
        why = "could be run" if trials else "could be measured in the time. Raise --time-budget"
        yield f"No configuration but your settings {why}."


def _worker_note(trials: Sequence[Attempt]) -> str | None:
    """That every trial with workers crashed, and why. None: some did not, or none was tried."""
    tried = [trial for trial in trials if trial.config.loader.num_workers]
    crashed = [failure for _, failure in failures_of(tried) if failure.kind == "crash"]
    if not crashed or len(crashed) < len(tried):
        return None
    why, advice = crashed[0].message.rstrip("."), "Correct the dataset or the loader, and run again."
    if any(trial.measurement for trial in trials):
        return f"Your loader does not work with workers: {why}. Only 0 workers were compared. {advice}"
    return f"No configuration with workers ran: {why}. {advice} --max-workers 0 measures without workers."


def _named(config: TrialConfig, yours: TrialConfig | None) -> str:
    what = settings_text(config)
    return f"The baseline (your settings), {what}," if config == yours else f"The finalist {what}"


def growth_text(measured: Sequence[Measurement], ram_bytes: int) -> str | None:
    """That an epoch would take half of the RAM at the pace at which the workers' memory grew in most measurements."""
    grown = [(run, seen.workers_growth_bytes_per_s) for run in measured if (seen := run.telemetry)]
    pace = median_low([0.0, *(per_s / run.samples_per_s for run, per_s in grown if per_s is not None)])
    length = measured[0].epoch_samples if measured else None
    if length is None or pace * length < ram_bytes / 2:
        return None
    return (
        f"The workers' memory grew steadily, by {bytes_text(1000 * pace)} in 1,000 samples. At this pace an epoch of "
        f"{counted(length, 'sample')} takes {bytes_text(pace * length)}, and the RAM has {bytes_text(ram_bytes)}. "
        "Check that your dataset does not keep what it reads."
    )


def cached_text(measured: Iterable[Measurement], sample_bytes: int) -> str | None:
    """That most of what was read came from the page cache. None: it did not, that is not known, or little was read
    from files: samples are made, in memory, or in mapped files."""
    num_samples = read = fetched = 0.0
    for run in measured:
        seen = run.telemetry
        if seen is not None and seen.file_read_bytes_per_s is not None and seen.disk_read_bytes_per_s is not None:
            num_samples += run.samples_per_s * seen.seconds
            read += seen.file_read_bytes_per_s * seen.seconds
            fetched += seen.disk_read_bytes_per_s * seen.seconds
    if not num_samples or read < max(_LEAST_BYTES, _LEAST_SHARE * sample_bytes) * num_samples or fetched > read / 2:
        return None
    found = f"{percent_text(fetched / read)} of the {bytes_text(read)} that were read came from storage"
    return (
        f"Samples were read from the page cache: {found}. The first epoch after a reboot reads them from storage and "
        "may be slower."
    )
