"""The first stages: the workload is built, a recipe is chosen per precision, the compute curve is measured."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.findings import Findings
from loadtune.probe.compiling import COMPILE_SHARE, compile_recipes, compiling_seconds
from loadtune.probe.compute import compute_curve, knee, reaches
from loadtune.probe.recipe import choose_recipes
from loadtune.records import MEMORY_FORMATS, ComputePoint, Precision, Recipe, RecipeChoice, WorkloadFacts
from loadtune.report.wording import precision_name, recipe_line
from loadtune.stages.resuming import check_same_workload
from loadtune.stages.run import COMPUTE_SHARE, TRIAL_SHARE, Run
from loadtune.stages.warm import warm_start
from loadtune.study.yours import ASSUMED_BATCH, assumed_settings, check_against_facts, stream_notes, with_facts
from loadtune.units import rate_text, ratio_text, seconds_text

ASSUMED_STEP_S = 1.0
"""Of a step that nobody asked for."""


def start(run: Run) -> WorkloadFacts:
    """Build the workload in the training process, check the options against it, and settle the baseline's settings."""
    found = run.found
    with found.stage("start"):
        before = found.facts
        if before is None:  # else the study had its seeds, and the file may be gone
            found.warm = warm_start(found.config.warm_start)
        facts = run.bench.describe()
        if before is not None:
            check_same_workload(before, facts)
            facts = before  # the study was made with them
        found.facts = facts
        _settle_baseline(found, facts)
        if before is None:
            check_against_facts(found.config, facts, found.device.kind)
            found.tell(_facts_text(facts))
            for note in stream_notes(facts):
                found.note(note)
        run.save()
    return facts


def _settle_baseline(found: Findings, facts: WorkloadFacts) -> None:
    """Settings of the user's own loader are the baseline as if they had been given."""
    yours = with_facts(found.config.yours, facts)
    found.config, found.assumed = replace(found.config, yours=yours), assumed_settings(yours)


def _facts_text(facts: WorkloadFacts) -> str:
    shape = "×".join(map(str, facts.input_shape))
    samples = "a stream of samples" if facts.dataset_length is None else f"{facts.dataset_length:,} samples"
    trained = f"; the model has {facts.num_parameters:,} parameters" if facts.num_parameters else ""
    return f"{samples} of {shape} {facts.input_dtype}, loaded in {seconds_text(facts.sample_s)} each{trained}"


def recipes(run: Run, facts: WorkloadFacts) -> Mapping[Precision, Recipe]:
    """Choose memory format, optimizer and torch.compile for each precision."""
    config = run.found.config
    if run.found.recipes:
        return {choice.chosen.precision: choice.chosen for choice in run.found.recipes}
    with run.found.stage("recipe"):
        bounds = [size for size in (facts.largest_batch, config.max_batch_size) if size is not None]
        chosen = choose_recipes(
            run.bench,
            facts,
            config.considered or facts.precisions,
            optimizer=config.workload.named_optimizer,
            largest=min(bounds, default=None),
            time_budget_s=config.time_budget_s,
            memory_format=next((each for each in MEMORY_FORMATS if each == config.fixed("memory_format")), None),
        )
        if facts.precisions != ("own",) and ("compile" in config.tune or config.fixed("compile")):
            chosen = compile_recipes(
                run.bench,
                chosen,
                time_budget_s=config.time_budget_s,
                asked_for="compile" not in config.tune,
                left_s=lambda: run.found.left_s,
            )
        run.found.recipes = chosen.choices
        for note in chosen.notes:
            run.found.note(note)
        _tell_compiling(run, chosen.choices)
        for choice in chosen.choices:
            run.found.tell(recipe_line(choice))
        run.save()
    return chosen.by_precision


def _tell_compiling(run: Run, choices: tuple[RecipeChoice, ...]) -> None:
    """Report what torch.compile took and gained, and what it leaves of the time budget."""
    for choice in choices:
        for point in (point for point in choice.points if point.compile_s is not None):
            plain = point_of(choice.points, replace(point.recipe, compile=False))
            run.found.tell(
                f"{choice.chosen.precision}: compiling a batch of {point.batch_size} took "
                f"{seconds_text(point.compile_s)}; {ratio_text(point.quickest_per_s / plain.quickest_per_s)} the rate "
                "of the same settings without torch.compile"
            )
    needed_s = compiling_seconds(choices)
    if needed_s > COMPILE_SHARE * max(0.0, run.found.left_s):
        run.found.note(
            f"torch.compile runs for each batch size, about {seconds_text(needed_s)} in all. Little of the time "
            f"budget of {seconds_text(run.found.config.time_budget_s)} is left for the search. Raise --time-budget, "
            "or limit the search to one precision (--precision) or one batch size (--fix batch_size=…)."
        )


def compute(run: Run, facts: WorkloadFacts) -> None:
    """Measure the compute-only rate up to saturation, from the points the recipes were chosen by."""
    found = run.found
    if found.compute_points:
        return
    with found.stage("compute"):
        known = [point_of(choice.points, choice.chosen) for choice in found.recipes]
        run_to = {ceiling.precision: ceiling.safe_batch_size for ceiling in found.ceilings}
        found.compute_points = compute_curve(
            run.bench,
            known,
            run_to,
            smallest=facts.smallest_batch,
            clock=run.clock,
            until_s=run.until(COMPUTE_SHARE),
            point_s=min(1.0, TRIAL_SHARE * found.config.time_budget_s / 3),
        )
        for choice in found.recipes:
            best = knee(found.compute_points, choice.chosen)
            ended = reaches(found.compute_points, choice.chosen, run_to[choice.chosen.precision])
            where = f"from batch {best.batch_size} on" if ended else f"at batch {best.batch_size}, the largest measured"
            found.tell(
                f"{precision_name(choice.chosen.precision)}: compute-only rate {rate_text(best.samples_per_s)}, {where}"
            )
        run.save()


def point_of(points: tuple[ComputePoint, ...], recipe: Recipe) -> ComputePoint:
    """What was timed with this recipe."""
    return next(p for p in points if p.recipe == recipe)


def fastest(found: Findings) -> ComputePoint:
    """The compute-only rate that no configuration of the space is expected to beat.

    Of the chosen recipes alone: a resumed run also knows the point of the user's own, which may be in no space.
    """
    chosen = {choice.chosen for choice in found.recipes}
    return max((p for p in found.compute_points if p.recipe in chosen), key=lambda p: p.samples_per_s)


def assumed_batch(found: Findings, precision: Precision) -> int:
    """The baseline's batch size where none was given: `ASSUMED_BATCH`, or a smaller power of two where its step would
    take longer than `ASSUMED_STEP_S`, or its precision does not train it."""
    points = [p for choice in found.recipes for p in choice.points if p.recipe.precision == precision]
    in_time = [ASSUMED_STEP_S * p.quickest_per_s for p in points] or [ASSUMED_BATCH]
    fits = [ceiling.safe_batch_size for ceiling in found.ceilings if ceiling.precision == precision]
    bounds = [each for each in (None if found.facts is None else found.facts.largest_batch,) if each is not None]
    largest = min(ASSUMED_BATCH, int(max(in_time)), *fits, *bounds)
    smallest = 1 if found.facts is None else found.facts.smallest_batch
    return max(smallest, 1 << (max(1, largest).bit_length() - 1))
