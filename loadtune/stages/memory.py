"""The memory stages: before the search a ceiling per precision bounds the batch size, and after it the ceiling of the
best precision is verified. Each names what it was measured against."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.host import read_alloc_conf
from loadtune.probe.host_memory import largest_host_batch
from loadtune.probe.memory import MemoryProbe
from loadtune.probe.recipe import LARGE, STEP_S
from loadtune.probe.step_limit import StepLimit
from loadtune.records import (
    CeilingLimit,
    ComputePoint,
    Device,
    FitReport,
    HostFacts,
    MemoryCeiling,
    Recipe,
    TuneConfig,
    Window,
    WorkloadFacts,
)
from loadtune.report.wording import limit_text, others_text, precision_name
from loadtune.seams import Bench
from loadtune.stages.gpu_contention import gpu_of, most_free, tell_crowded
from loadtune.stages.run import Run
from loadtune.stages.searching import search_of
from loadtune.study.space import SearchSpace
from loadtune.units import bytes_text, counted, rate_text


def bound_batches(run: Run, facts: WorkloadFacts) -> tuple[ComputePoint, ...]:
    """Bound the batch size of each precision by a memory ceiling, verified where that is asked for.

    Returns the compute curves: what the recipes were chosen by, and the steps of the sizes that the probes ran.
    """
    found, points = run.found, list[ComputePoint]()
    for choice in found.recipes:
        point = choice.point
        probe = _probe(run, facts, point)
        ceiling = _described(_first_ceiling(probe, found.config), facts, found.host, found.device)
        found.ceilings.append(ceiling)
        if not ceiling.verified:
            found.probes[ceiling.precision] = probe
        found.tell(_ceiling_line(ceiling, found.device))
        steps = (_stepped(point.recipe, report, run.clock.now()) for report in ceiling.probes)
        curve = [point, *(step for step in steps if step is not None)]
        best = max(curve, key=lambda point: point.samples_per_s)
        found.tell(
            f"{precision_name(ceiling.precision)}: compute-only rate {rate_text(best.samples_per_s)} at batch "
            f"{best.batch_size}, the fastest of {counted(len(curve), 'size')}"
        )
        points += curve
    for note in dict.fromkeys(note for ceiling in found.ceilings for note in ceiling.notes):
        found.note(note)
    tell_crowded(run)
    found.free_bytes = most_free(run)
    return tuple(points)


def _stepped(recipe: Recipe, report: FitReport, at_s: float) -> ComputePoint | None:
    """The quickest step of a size, which ended about `at_s`, as a point of the compute curve. None: there was none."""
    if not report.fits or report.step_s is None:
        return None
    size, step_s = report.batch_size, report.step_s
    step = Window(start_s=at_s - step_s, seconds=step_s, num_steps=1, num_samples=size)
    return ComputePoint(recipe=recipe, batch_size=size, windows=(step,), num_timings=0)


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
    if predicted is None or any(p.fits and p.batch_size >= ranked[0].config.batch_size for p in predicted.probes):
        return
    if not run.has_time_to_verify(predicted):
        found.note(
            f"The largest batch size of {precision} is predicted and was not verified, because little of the time "
            "budget was left. Raise --time-budget, or use --probe all."
        )
        return
    with found.stage("verify"):
        choice = next(each for each in found.recipes if each.chosen.precision == precision)
        probe = found.probes.get(predicted.precision) or _probe(run, facts, choice.point)
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


def _first_ceiling(probe: MemoryProbe, config: TuneConfig) -> MemoryCeiling:
    """Predicted; verified with ``--probe all``, and where the user named a size that is above the safe one."""
    ceiling = probe.verify() if config.probe == "all" else probe.bound()
    named = config.named_batch_size or 0
    return ceiling if ceiling.verified or named <= ceiling.safe_batch_size else probe.verify()


def _probe(run: Run, facts: WorkloadFacts, point: ComputePoint) -> MemoryProbe:
    """Of the recipe of `point`. A step that a predicted ceiling is read off takes `STEP_S` at most: larger batches
    follow from the line through smaller ones, which costs no step of minutes where a CPU trains."""
    return MemoryProbe(
        run.bench,
        point.recipe,
        _caps(run, facts) | _host_cap(facts, run.host_now()),
        smallest=facts.smallest_batch,
        line_limit=StepLimit(
            seconds=STEP_S, known={point.batch_size: point.quickest_step_s}, admitted=facts.smallest_batch
        ),
        large=LARGE * point.batch_size,
    )


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
    caps = {**caps, **_host_cap(facts, host)}
    probe = MemoryProbe(bench, recipe, caps, smallest=facts.smallest_batch, num_steps=num_steps, step_limit=step_limit)
    return _described(probe.verify(), facts, host_before, device)


def _host_cap(facts: WorkloadFacts, host: HostFacts) -> dict[CeilingLimit, int]:
    return {"host_memory": max(facts.smallest_batch, largest_host_batch(facts.sample_bytes, host))}


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
    peak = f" (peak {bytes_text(ceiling.peak_bytes)})" if ceiling.peak_bytes else ""
    fit = f"train{peak}" if ceiling.verified else "are predicted to fit"
    return (
        f"{precision_name(ceiling.precision)}: batch sizes up to {ceiling.batch_size} {fit}, up to "
        f"{ceiling.safe_batch_size} with 5% to spare; limited by {limit_text(ceiling.limit, device.kind)}"
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
