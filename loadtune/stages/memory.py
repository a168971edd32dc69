"""The memory stage: a ceiling per precision, with what it was measured against."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.host import read_alloc_conf
from loadtune.probe.host_memory import largest_host_batch
from loadtune.probe.memory import MemoryProbe
from loadtune.probe.step_limit import StepLimit, largest_within
from loadtune.probe.tries import step_seconds
from loadtune.records import (
    CeilingLimit,
    ComputePoint,
    Device,
    HostFacts,
    MemoryCeiling,
    Precision,
    Recipe,
    WorkloadFacts,
)
from loadtune.report.wording import limit_text, others_text
from loadtune.seams import Bench
from loadtune.stages.gpu_contention import gpu_of, most_free, tell_crowded
from loadtune.stages.probing import loader_top, point_of
from loadtune.stages.run import Run
from loadtune.units import bytes_text, seconds_text


def memory(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> None:
    """Find the ceilings per precision."""
    found = run.found
    if found.ceilings:
        return
    with found.stage("memory"):
        for choice in found.recipes:
            recipe = chosen[choice.chosen.precision]
            ceiling = find_ceiling(
                run.bench,
                recipe,
                facts,
                run.host_now(),
                found.host,
                found.device,
                _caps(run, facts),
                step_limit=_step_limit(run, facts, point_of(choice.points, recipe)),
            )
            found.ceilings.append(ceiling)
            found.tell(_ceiling_line(ceiling, found.device))
        for note in dict.fromkeys(note for ceiling in found.ceilings for note in ceiling.notes):
            found.note(note)
        _tell_slow(run, facts)
        tell_crowded(run)
        found.free_bytes = most_free(run)
        run.keep_probes()


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
    """Probe under `caps` and the host's memory; `host_before` was read before the training process used the device."""
    room = max(facts.min_batch_size, largest_host_batch(facts.sample_bytes, host))
    ceiling = MemoryProbe(
        bench,
        recipe,
        {**caps, "host_memory": room},
        smallest=facts.min_batch_size,
        num_steps=num_steps,
        step_limit=step_limit,
    ).verify()
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
    return (
        f"{ceiling.precision}: batch sizes up to {ceiling.batch_size} train{peak}, up to {ceiling.safe_batch_size} "
        f"with 5% to spare; limited by {limit_text(ceiling.limit, device.kind)}"
    )


def _tell_slow(run: Run, facts: WorkloadFacts) -> None:
    """Report which batch sizes the time of a step leaves out."""
    widest = max(run.found.ceilings, key=lambda ceiling: ceiling.batch_size)
    largest = widest.batch_size
    if widest.limit != "time" or largest >= loader_top(
        run, facts
    ):  # else the loader keeps larger ones out, and says so
        return
    predicted = max(largest, largest_within(run.step_limit_s, step_seconds(widest.probes)))
    beyond = "one step" if predicted == largest else f"one step above batch {predicted}"
    run.found.note(
        f"Batch sizes above {largest} were not tried: {beyond} would take more than {seconds_text(run.step_limit_s)}, "
        "1% of the time budget. Raise --time-budget to try them."
    )


def _caps(run: Run, facts: WorkloadFacts) -> dict[CeilingLimit, int]:
    """Limits of the batch size other than memory and the time of a step."""
    config = run.found.config
    caps: dict[CeilingLimit, int] = {"dataset": facts.dataset_length}
    if config.max_batch_size is not None:
        caps["cap"] = config.max_batch_size
    return caps


def _step_limit(run: Run, facts: WorkloadFacts, point: ComputePoint) -> StepLimit:
    """What a step may take, and what steps took. A batch size that the user gave is never too slow to try."""
    return StepLimit(
        seconds=run.step_limit_s,
        known={point.batch_size: point.quickest_step_s},
        admitted=max(run.found.config.named_batch_size or 1, facts.min_batch_size),
    )
