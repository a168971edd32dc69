"""The memory stages: before the search a ceiling per precision bounds the batch size, and after it the ceiling of the
best precision is verified. Each names what it was measured against."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.host import read_alloc_conf
from loadtune.probe.host_memory import largest_host_batch
from loadtune.probe.memory import MemoryProbe
from loadtune.probe.step_limit import StepLimit
from loadtune.records import (
    CeilingLimit,
    ComputePoint,
    Device,
    HostFacts,
    MemoryCeiling,
    Precision,
    Recipe,
    TuneConfig,
    WorkloadFacts,
)
from loadtune.report.wording import limit_text, others_text, precision_name
from loadtune.seams import Bench
from loadtune.stages.gpu_contention import gpu_of, most_free, tell_crowded
from loadtune.stages.probing import point_of
from loadtune.stages.run import Run
from loadtune.stages.searching import search_of
from loadtune.study.space import SearchSpace
from loadtune.units import bytes_text

PROBED_STEP_S = 1.0
"""Of one step that a predicted ceiling is read off. Larger batches follow from the line through smaller ones, which
costs no step of minutes where a CPU trains."""


def memory(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> None:
    """Bound the batch size of each precision by a memory ceiling, or verify every ceiling where that is asked for."""
    found = run.found
    if found.ceilings:
        return
    with found.stage("memory"):
        for choice in found.recipes:
            probe = _probe(run, facts, chosen[choice.chosen.precision])
            ceiling = _described(_first_ceiling(probe, found.config), facts, found.host, found.device)
            found.ceilings.append(ceiling)
            if not ceiling.verified:
                found.probes[ceiling.precision] = probe
            found.tell(_ceiling_line(ceiling, found.device))
        for note in dict.fromkeys(note for ceiling in found.ceilings for note in ceiling.notes):
            found.note(note)
        tell_crowded(run)
        found.free_bytes = most_free(run)
        run.save()


def verify_memory(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Verify the ceiling of the precision that the search found fastest: run its sizes, and replace it.

    Left out where the ceiling is verified, where the size about to win is no larger than one that the probe ran, where
    finalists ran before an interruption, and where time is short. A size that fails is data. The predicted ceiling
    stays where the probe itself fails.
    """
    found = run.found
    ranked = [] if found.confirmed else search_of(run, facts, searched).ranked()
    precision = ranked[0].config.precision if ranked else None
    predicted = next((c for c in found.ceilings if c.precision == precision and not c.verified), None)
    if predicted is None or ranked[0].config.batch_size <= _largest_run(predicted):
        return
    if not run.has_time_to_verify(predicted):
        found.note(
            f"The largest batch size of {precision} is predicted and was not verified, because little of the time "
            "budget was left. Raise --time-budget, or use --probe all."
        )
        return
    with found.stage("verify"):
        probe = found.probes.get(predicted.precision) or _probe(run, facts, searched.recipes[predicted.precision])
        try:
            ceiling = _described(probe.verify(), facts, found.host, found.device)
        except OutOfTimeError:
            raise
        except LoadtuneError as error:
            found.note(f"The largest batch size of {precision} is predicted and could not be verified: {error}")
            return
        found.ceilings[found.ceilings.index(predicted)] = ceiling
        run.save()
        found.tell(_ceiling_line(ceiling, found.device))
        for note in ceiling.notes:
            found.note(note)
        tell_crowded(run)


def _largest_run(ceiling: MemoryCeiling) -> int:
    """The largest batch that its probe trained."""
    return max((probe.batch_size for probe in ceiling.probes if probe.fits), default=0)


def _first_ceiling(probe: MemoryProbe, config: TuneConfig) -> MemoryCeiling:
    """Predicted; verified with ``--probe all``, and where the user named a size that is above the safe one."""
    ceiling = probe.verify() if config.probe == "all" else probe.bound()
    named = config.named_batch_size or 0
    return ceiling if ceiling.verified or named <= ceiling.safe_batch_size else probe.verify()


def _probe(run: Run, facts: WorkloadFacts, recipe: Recipe) -> MemoryProbe:
    points = (point for choice in run.found.recipes for point in choice.points)
    limit = _step_limit(facts, point_of(tuple(points), recipe))
    return _memory_probe(run.bench, recipe, facts, run.host_now(), _caps(run, facts), line_limit=limit)


def find_ceiling(
    bench: Bench,
    recipe: Recipe,
    facts: WorkloadFacts,
    host: HostFacts,
    host_before: HostFacts,
    device: Device,
    caps: Mapping[CeilingLimit, int],
    *,
    num_steps: int = 3,
    step_limit: StepLimit | None = None,
) -> MemoryCeiling:
    """Verified, under `caps` and the host's memory; `host_before` is of before the training process used the device."""
    probe = _memory_probe(bench, recipe, facts, host, caps, num_steps=num_steps, step_limit=step_limit)
    return _described(probe.verify(), facts, host_before, device)


def _memory_probe(
    bench: Bench,
    recipe: Recipe,
    facts: WorkloadFacts,
    host: HostFacts,
    caps: Mapping[CeilingLimit, int],
    *,
    num_steps: int = 3,
    step_limit: StepLimit | None = None,
    line_limit: StepLimit | None = None,
) -> MemoryProbe:
    room = max(facts.smallest_batch, largest_host_batch(facts.sample_bytes, host))
    return MemoryProbe(
        bench,
        recipe,
        {**caps, "host_memory": room},
        smallest=facts.smallest_batch,
        num_steps=num_steps,
        step_limit=step_limit,
        line_limit=line_limit,
    )


def _described(ceiling: MemoryCeiling, facts: WorkloadFacts, host_before: HostFacts, device: Device) -> MemoryCeiling:
    """With the device's memory and who shared it."""
    gpu = gpu_of(host_before, device)
    return replace(
        ceiling,
        capacity_bytes=facts.memory_capacity_bytes,
        others_bytes=None if gpu is None else gpu.others_bytes,
        others=() if gpu is None else others_text(gpu),
        alloc_conf=read_alloc_conf() if device.kind == "cuda" else None,
    )


def _ceiling_line(ceiling: MemoryCeiling, device: Device) -> str:
    limited = f"limited by {limit_text(ceiling.limit, device.kind)}"
    if not ceiling.verified:
        return (
            f"{precision_name(ceiling.precision)}: batch sizes up to {ceiling.batch_size} are predicted to fit, up to "
            f"{ceiling.safe_batch_size} with 5% to spare; {limited}"
        )
    peak = f" (peak {bytes_text(ceiling.peak_bytes)})" if ceiling.peak_bytes else ""
    return (
        f"{precision_name(ceiling.precision)}: batch sizes up to {ceiling.batch_size} train{peak}, up to "
        f"{ceiling.safe_batch_size} with 5% to spare; {limited}"
    )


def _caps(run: Run, facts: WorkloadFacts) -> dict[CeilingLimit, int]:
    """Limits of the batch size other than memory and the time of a step."""
    config = run.found.config
    if facts.fixed_batch_size is not None:
        return {"fixed": facts.fixed_batch_size}
    caps: dict[CeilingLimit, int] = {} if facts.dataset_length is None else {"dataset": facts.dataset_length}
    if config.max_batch_size is not None:
        caps["cap"] = config.max_batch_size
    return caps


def _step_limit(facts: WorkloadFacts, point: ComputePoint) -> StepLimit:
    """Of the sizes that the probe runs; those that may be searched follow from them."""
    return StepLimit(
        seconds=PROBED_STEP_S, known={point.batch_size: point.quickest_step_s}, admitted=facts.smallest_batch
    )
