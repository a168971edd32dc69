"""Before the search: the workload is built, and each precision calibrated: recipe, memory ceiling, compute curve. After
it: the ceiling of the best precision is verified."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.errors import TrainingError, WorkloadError
from loadtune.limits.memory import MemoryProbe, largest_host_batch, verifying_seconds
from loadtune.limits.recipe import COMPILE_SHARE, LARGE, choose_recipes, compile_recipes, compiling_seconds
from loadtune.records.answer import LAST_SHARE
from loadtune.records.config import MEMORY_FORMATS, Precision, Recipe
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Window
from loadtune.records.memory import CeilingLimit, MemoryCeiling
from loadtune.report.machine import others_text
from loadtune.report.wording import limit_text, precision_name, recipe_line
from loadtune.resuming import check_same_workload
from loadtune.run import FINAL_SHARE, SEARCH_SHARE, Run
from loadtune.search.baseline import assumed_settings, check_against_facts, stream_notes, with_facts
from loadtune.search.search import Search
from loadtune.units import bytes_text, counted, rate_text, seconds_text

VERIFY_AT_MOST = 0.1
"""Of the time budget, for verifying the memory ceiling of the precision about to win. One that is expected to take
longer stays predicted."""


def start(run: Run) -> WorkloadFacts:
    """Build the workload in the training process, check the options against it, and settle the baseline's settings."""
    with run.stage("start"):
        before = run.facts
        facts = run.training.describe()
        if before is not None:
            check_same_workload(before, facts)
            facts = before  # the study was made with them
        run.facts = facts
        yours = with_facts(run.config.yours, facts)  # settings of the user's own loader count as given
        run.config, run.assumed = replace(run.config, yours=yours), assumed_settings(yours)
        if before is None:
            check_against_facts(run.config, facts, run.device.kind)
            run.tell(_facts_text(facts))
            run.note(*stream_notes(facts))
        run.save()
    return facts


def _facts_text(facts: WorkloadFacts) -> str:
    shape = "×".join(map(str, facts.input_shape))
    samples = "a stream of samples" if facts.dataset_length is None else f"{facts.dataset_length:,} samples"
    trained = f"; the model has {facts.num_parameters:,} parameters" if facts.num_parameters else ""
    return f"{samples} of {shape} {facts.input_dtype}, loaded in {seconds_text(facts.sample_s)} each{trained}"


def calibrate(run: Run, facts: WorkloadFacts) -> Mapping[Precision, Recipe]:
    """Per precision: the recipe, chosen at a moderate batch, then two sizes that give memory line and compute curve."""
    if not run.compute_points:
        with run.stage("calibrate"):
            _choose_recipes(run, facts)
            for choice in run.recipes:
                run.compute_points += _bound_batches(run, facts, choice.point)
            run.save()
    return {choice.chosen.precision: choice.chosen for choice in run.recipes}


def _choose_recipes(run: Run, facts: WorkloadFacts) -> None:
    """Choose memory format, optimizer and torch.compile for each precision. Say where the last leaves little time."""
    config, until_s = run.config, run.until(1 - SEARCH_SHARE - FINAL_SHARE - LAST_SHARE)
    bounds = [size for size in (facts.largest_batch, config.max_batch_size) if size is not None]
    chosen = choose_recipes(
        run.training,
        facts,
        config.considered or facts.precisions,
        optimizer=config.workload.named_optimizer,
        largest=min(bounds, default=None),
        time_budget_s=config.time_budget_s,
        memory_format=next((each for each in MEMORY_FORMATS if each == config.fixed("memory_format")), None),
        spare_s=lambda: until_s - run.clock.now(),
    )
    if facts.precisions != ("own",) and ("compile" in config.tune or config.fixed("compile")):
        chosen = compile_recipes(
            run.training,
            chosen,
            time_budget_s=config.time_budget_s,
            asked_for="compile" not in config.tune,
            left_s=lambda: run.left_s,
        )
    run.recipes = chosen.choices
    run.note(*chosen.notes)
    needed_s = compiling_seconds(chosen.choices)
    if needed_s > COMPILE_SHARE * max(0.0, run.left_s):
        run.note(
            f"torch.compile runs for each batch size, about {seconds_text(needed_s)} in all. Little of the time "
            f"budget of {seconds_text(config.time_budget_s)} is left for the search. Raise --time-budget, "
            "or limit the search to one precision (--precision) or one batch size (--fix batch_size=…)."
        )
    for choice in chosen.choices:
        run.tell(recipe_line(choice))


def _bound_batches(run: Run, facts: WorkloadFacts, point: ComputePoint) -> tuple[ComputePoint, ...]:
    """Find the memory ceiling of a recipe: predicted; verified where the user named a size that is above the safe one.
    Returns the compute curve: ``point``, by which the recipe was chosen, and the steps of the sizes that the probe
    ran."""
    probe = _probe(run, facts, point)
    found = probe.bound()
    if (run.config.named_batch_size or 0) > found.safe_batch_size:
        found = probe.verify()
    if not found.verified:
        run.probes[found.precision] = probe
    run.ceilings.append(described(found, facts, run.host, run.device))
    run.tell(_ceiling_line(found, run.device))
    ended_s, curve = run.clock.now(), [point]
    for report in found.probes:
        if report.fits and report.step_s is not None:
            size, step_s = report.batch_size, report.step_s
            step = Window(start_s=ended_s - step_s, seconds=step_s, num_steps=1, num_samples=size)
            curve.append(ComputePoint(recipe=point.recipe, batch_size=size, windows=(step,), num_timings=0))
    best = max(curve, key=lambda point: point.samples_per_s)
    run.tell(
        f"{precision_name(found.precision)}: compute-only rate {rate_text(best.samples_per_s)} at batch "
        f"{best.batch_size}, the fastest of {counted(len(curve), 'size')}"
    )
    return tuple(curve)


def _probe(run: Run, facts: WorkloadFacts, point: ComputePoint) -> MemoryProbe:
    """Of the recipe of `point`. A step that a predicted ceiling is read off takes `STEP_S` at most: larger batches
    follow from the line through smaller ones, which costs no step of minutes where a CPU trains."""
    step_s, large = {point.batch_size: point.quickest_step_s}, LARGE * point.batch_size
    caps = caps_of(facts, run.config.max_batch_size, run.host_now())
    return MemoryProbe(run.training, point.recipe, caps, smallest=facts.smallest_batch, step_s=step_s, large=large)


def caps_of(facts: WorkloadFacts, max_batch_size: int | None, host: HostFacts) -> dict[CeilingLimit, int]:
    """Limits of the batch size other than the device's memory."""
    caps: dict[CeilingLimit, int | None] = {"dataset": facts.dataset_length, "cap": max_batch_size}
    if facts.fixed_batch_size is not None:
        caps = {"fixed": facts.fixed_batch_size}
    caps["host_memory"] = largest_host_batch(facts, host)
    return {limit: size for limit, size in caps.items() if size is not None}


def verify_memory(run: Run, facts: WorkloadFacts, search: Search) -> None:
    """Verify the ceiling of the precision that the search found fastest: run its sizes, and replace it.

    Left out where the ceiling is verified, where the size about to win is no larger than one that the probe ran, where
    finalists ran before an interruption, and where time is short. A size that fails is data. The predicted ceiling
    stays where the probe itself fails.
    """
    ranked = [] if run.confirmed else search.ranked()
    precision = ranked[0].precision if ranked else None
    predicted = next((c for c in run.ceilings if c.precision == precision and not c.verified), None)
    if predicted is None or any(p.fits and p.batch_size >= ranked[0].batch_size for p in predicted.probes):
        return
    if verifying_seconds(predicted) > min(VERIFY_AT_MOST * run.config.time_budget_s, run.spare_s):
        run.note(
            f"The largest batch size of {precision} is predicted and was not verified, because that takes "
            f"{seconds_text(verifying_seconds(predicted))}. Raise --time-budget."
        )
        return
    with run.stage("verify"):
        choice = next(each for each in run.recipes if each.chosen.precision == precision)
        probe = run.probes.get(predicted.precision) or _probe(run, facts, choice.point)
        try:
            ceiling = described(probe.verify(), facts, run.host, run.device)
        except (WorkloadError, TrainingError) as error:
            run.note(f"The largest batch size of {precision} is predicted and could not be verified: {error}")
            return
        run.ceilings[run.ceilings.index(predicted)] = ceiling
        run.save()
        run.tell(_ceiling_line(ceiling, run.device))


def described(ceiling: MemoryCeiling, facts: WorkloadFacts, host_before: HostFacts, device: Device) -> MemoryCeiling:
    """With the device's memory, and who shared it before the training process used it."""
    gpu = next((gpu for gpu in host_before.gpus if gpu.uuid == device.uuid), None)
    return replace(
        ceiling,
        capacity_bytes=facts.memory_capacity_bytes,
        others_bytes=None if gpu is None else gpu.others_bytes,
        others=() if gpu is None else others_text(gpu),
    )


def _ceiling_line(ceiling: MemoryCeiling, device: Device) -> str:
    peak = f" (peak {bytes_text(ceiling.peak_bytes)})" if ceiling.peak_bytes else ""
    fit = f"train{peak}" if ceiling.verified else "are predicted to fit"
    return (
        f"{precision_name(ceiling.precision)}: batch sizes up to {ceiling.batch_size} {fit}, up to "
        f"{ceiling.safe_batch_size} with 5% to spare; limited by {limit_text(ceiling.limit, device.kind)}"
    )
