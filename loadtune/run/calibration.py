"""Before the search: the workload is built, and each precision calibrated: recipe, memory ceiling, compute curve. After
it: the ceiling of the best precision is verified. And a run that was cut short continues, where nothing is different.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from loadtune.decide.ceiling import MemoryProbe, verifying_seconds
from loadtune.decide.final import LOOKS
from loadtune.decide.recipe import LARGE, Recipes
from loadtune.decide.search import FEWEST_RUNS, FEWEST_STEPS, WARM_STEPS, Search
from loadtune.decide.space import (
    USUAL,
    SearchSpace,
    assumed_settings,
    baseline,
    batch_sizes,
    fixed_or,
    largest_batches,
    problems,
    with_facts,
    worker_counts,
)
from loadtune.errors import ResultError, TrainingError, UsageError, WorkloadError
from loadtune.model.workers import caps_of
from loadtune.records.config import Precision
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint, Window
from loadtune.run.state import Resumable, Run, read_run
from loadtune.seams import drive
from loadtune.store import RESULT_FILE, load_result
from loadtune.units import counted, seconds_text


def start(run: Run) -> WorkloadFacts:
    """Build the workload in the training process, check the options against it, and settle the baseline's settings."""
    with run.journal.stage("start"):
        state, journal, before = run.state, run.journal, run.state.facts
        facts = run.training.describe()
        if before is not None:
            check_same_workload(before, facts)
            facts = before  # the study was made with them
        state.facts = facts
        yours = with_facts(state.config.yours, facts)  # settings of the user's own loader count as given
        state.config, state.assumed = replace(state.config, yours=yours), assumed_settings(yours)
        if before is None:
            for problem in problems(state.config, facts, state.device.kind):
                raise UsageError(problem)
            journal.tell(facts)
            journal.note(facts)
        journal.save()
    return facts


def calibrate(run: Run, facts: WorkloadFacts) -> Mapping[Precision, MemoryProbe]:
    """Per precision: the recipe, chosen at a moderate batch, then two sizes that give memory line and compute curve.
    Returns the probes, so that verifying a ceiling goes on from there; after a resumption none."""
    state, budget, journal = run.state, run.budget, run.journal
    if state.compute_points:
        return {}
    with journal.stage("calibrate"):
        recipes = Recipes(facts=facts, config=state.config)
        recipes.spare_s = lambda: budget.measuring_s - FEWEST_RUNS * _shortest_s(run, recipes)
        drive(recipes.choose(), lambda asked: run.training.time_compute(*asked))
        state.recipes = tuple(recipes.choices)
        journal.note(*recipes.notes)
        for choice in state.recipes:
            journal.tell(choice)
        probes = {each.chosen.precision: _bound_batches(run, facts, each.point) for each in state.recipes}
        journal.save()
    return probes


def _shortest_s(run: Run, recipes: Recipes) -> float:
    """Of a run at the least, as far as steps have been timed."""
    step_s = recipes.choices[0].point.quickest_step_s if recipes.choices else 0.0
    return run.segment_s + (WARM_STEPS + FEWEST_STEPS) * step_s


def search_space(run: Run, facts: WorkloadFacts) -> SearchSpace:
    """Freeze what the study searches, and settle the user's own configuration."""
    state, config, can_pin = run.state, run.state.config, run.state.device.kind == "cuda"
    if not state.batch_sizes:  # else they are of before an interruption, and the study has them
        state.yours = yours = baseline(config.yours, facts, state.recipes, state.ceilings, can_pin=can_pin)
        run.journal.note(yours)
        state.batch_sizes = batch_sizes(config, facts, yours.batch_size, state.recipes, state.ceilings)
        state.num_workers = worker_counts(config, facts, yours.loader.num_workers, state.share.num_usable_cores)
        run.journal.save()
    usual = facts.own_loader or USUAL
    others: dict[str, Any] = {"prefetch_factor": usual.prefetch_factor, "in_order": usual.in_order}
    others |= {each.name: each.value for each in config.fix if each.name in (*others, "persistent_workers")}
    return SearchSpace(
        batch_sizes=state.batch_sizes,
        num_workers=state.num_workers,
        pin_memory=fixed_or(config, "pin_memory", (False, True) if can_pin else (False,)),
        recipes={choice.chosen.precision: choice.chosen for choice in state.recipes},
        ceilings=largest_batches(config, state.ceilings),
        others=replace(USUAL, **others),
    )


def _bound_batches(run: Run, facts: WorkloadFacts, point: ComputePoint) -> MemoryProbe:
    """Find the memory ceiling of a recipe: predicted; verified where the user named a size that is above the safe one.
    And the compute curve: ``point``, by which the recipe was chosen, and the steps of the sizes that the probe ran."""
    state, journal, probe = run.state, run.journal, _probe(run, facts, point)
    found = drive(probe.bound(), run.training.try_batch)
    if max(state.config.named_batch_sizes, default=0) > found.safe_batch_size:
        found = drive(probe.verify(), run.training.try_batch)
    state.ceilings.append(replace(found, capacity_bytes=facts.memory_capacity_bytes))
    journal.tell(found)
    ended_s, curve = run.budget.clock(), [point]
    for report in found.probes:
        if report.fits and report.step_s is not None:
            size, step_s = report.batch_size, report.step_s
            step = Window(start_s=ended_s - step_s, seconds=step_s, num_steps=1, num_samples=size)
            curve.append(ComputePoint(recipe=point.recipe, batch_size=size, windows=(step,), num_timings=0))
    journal.tell(tuple(curve))
    state.compute_points += tuple(curve)
    return probe


def _probe(run: Run, facts: WorkloadFacts, point: ComputePoint) -> MemoryProbe:
    """Of the recipe of `point`. A step that a predicted ceiling is read off takes `STEP_S` at most: larger batches
    follow from the line through smaller ones, which costs no step of minutes where a CPU trains."""
    step_s, large = {point.batch_size: point.quickest_step_s}, LARGE * point.batch_size
    caps = caps_of(facts, run.state.config.max_batch_size, run.host_now())
    return MemoryProbe(point.recipe, caps, smallest=facts.smallest_batch, step_s=step_s, large=large)


def verify_memory(run: Run, facts: WorkloadFacts, search: Search, probes: Mapping[Precision, MemoryProbe]) -> None:
    """Verify the ceiling of the precision that the search found fastest: run its sizes, and replace it. Left out where
    the size about to win is no larger than one that the probe ran, where finalists ran before an interruption, and
    where time is short. The predicted ceiling stays where the probe itself fails."""
    state, journal = run.state, run.journal
    ranked = [] if state.confirmed else search.ranked()
    precision = ranked[0].precision if ranked else None
    predicted = next((c for c in state.ceilings if c.precision == precision and not c.verified), None)
    if predicted is None or any(p.fits and p.batch_size >= ranked[0].batch_size for p in predicted.probes):
        return
    final_s = search.final_s(LOOKS[0])  # which is not to wait for longer than it takes
    if verifying_seconds(predicted) > min(final_s, run.budget.measuring_s - final_s):
        journal.note(
            f"The largest batch size of {precision} is predicted and was not verified, because that takes "
            f"{seconds_text(verifying_seconds(predicted))}. Raise --time-budget."
        )
        return
    with journal.stage("verify"):
        choice = next(each for each in state.recipes if each.chosen.precision == precision)
        probe = probes.get(predicted.precision) or _probe(run, facts, choice.point)
        try:
            ceiling = replace(drive(probe.verify(), run.training.try_batch), capacity_bytes=facts.memory_capacity_bytes)
        except (WorkloadError, TrainingError) as error:
            journal.note(f"The largest batch size of {precision} is predicted and could not be verified: {error}")
            return
        state.ceilings[state.ceilings.index(predicted)] = ceiling
        journal.save()
        journal.tell(ceiling)


# A run that was cut short

_MAY_DIFFER = ("num_trials", "time_budget_s", "out", "device", "remedies")
"""Of a TuneConfig: how long, where to, and what is tried on the answer; the device is compared as it was chosen."""

_OF_THE_MACHINE = ("cpu_name", "num_usable_cores", "num_listed_cores", "torch", "cuda")
"""Not the hostname, which is another with each start of a container; Python and driver are compared apart."""

_OF_THE_WORKLOAD = (
    *("dataset_length", "input_shape", "input_dtype", "num_classes", "num_parameters", "precisions"),
    "num_ranks",
)

_RESUMED = "This run was resumed"


def restore(run: Run) -> None:
    """Put what was found before into `run`. Raises ResultError where that run had ended, or where this is not the same
    machine or the same job."""
    state, journal, folder = run.state, run.journal, run.journal.folder
    kept = read_run(folder)
    if kept.ended:
        raise ResultError(f"The run in {folder} went to its end, so nothing is left of it to resume. Run again.")
    _refuse_unlike(_identity(kept, kept.facts), _identity(state, kept.facts))
    for each in fields(Resumable):
        if each.kw_only:  # the others are of this part
            setattr(state, each.name, getattr(kept, each.name))
    run.training.num_trainings = len(state.trials) + len(state.confirmed)
    with suppress(ResultError):  # there is none that could be read
        state.earlier = load_result(folder / RESULT_FILE)
    journal.notes = [note for note in state.early_notes if not note.startswith(_RESUMED)]  # once, of the last time
    before = counted(len(kept.trials) + len(kept.confirmed), "measurement")
    journal.notes.append(f"{_RESUMED}, with {before} made before. The time taken is that of this part alone.")
    journal.tell(journal.notes[-1])


def check_same_workload(then: WorkloadFacts, now: WorkloadFacts) -> None:
    """Raise ResultError where dataset or model are not what was measured before."""
    was_seen = then.torchvision is not None and now.torchvision is not None  # None: the job did not use it
    names = (*_OF_THE_WORKLOAD, *(("torchvision",) if was_seen else ()))
    were, are = ({name: getattr(facts, name) for name in names} for facts in (then, now))
    code = {part.name: part.sha256 for part in then.code}
    # What is there once alone is no difference: whatever uses it differs too, or it is not used.
    changed = [part.name for part in now.code if code.get(part.name, part.sha256) != part.sha256]
    other = f"the code of the workload has changed ({', '.join(changed)})" if changed else None
    _refuse_unlike(were, are, other)


def _identity(run: Resumable, facts: WorkloadFacts | None) -> dict[str, object]:
    """What has to be the same, by name."""
    host, device, config = run.host, run.device, run.config
    if facts is not None:  # of a loader's own settings some may be given now
        config = replace(config, yours=with_facts(config.yours, facts))
    options = asdict(config)
    return {
        "loadtune": run.version,
        **asdict(device),
        **{name: getattr(host, name) for name in _OF_THE_MACHINE},
        "python": host.python.rpartition(".")[0],  # 3.12.4 mends 3.12.3
        "driver": host.driver if device.kind == "cuda" else None,
        **options.pop("workload"),
        **options.pop("yours"),
        **{name: value for name, value in options.items() if name not in _MAY_DIFFER},
    }


def _refuse_unlike(then: Mapping[str, object], now: Mapping[str, object], other: str | None = None) -> None:
    """Raise ResultError where something is not the same, or where there is an ``other`` difference."""
    unlike = [f"{name} was {then[name]!r} and is {value!r}" for name, value in now.items() if then[name] != value]
    if differences := [*unlike, *([other] if other else [])]:
        raise ResultError(
            f"That run cannot be resumed here: {'; '.join(differences)}. A run must stay on one machine, one version"
            " and one workload. Run without --resume."
        )
