"""What a result comes to, in sentences: whether it stands, what limits the winner, what changes of the code bring.

In: a `TuningResult`. Out: whole sentences, and for changes of the code a table and lines to paste.
"""

from collections.abc import Iterable
from dataclasses import replace

from loadtune.records.answer import doubt_of, was_confirmed_whole
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.result import Bottleneck, Remedies, ResourceLimit, TriedRemedy, TuningResult, Winner
from loadtune.report.export import changed_statements
from loadtune.report.tables import Section, Table, View
from loadtune.report.wording import RESOURCE_TEXT, gain_text, remedy_text, score_text, settings_text
from loadtune.units import MISSING, counted, number_text, percent_text, rate_text, ratio_text

MOSTLY = 0.5
"""Share of a resource's time from which on one part of it is named."""


def warning(result: TuningResult) -> str | None:
    """That the run was cut short, or confirmed nothing. None: it went to its end with an answer."""
    if result.cut_short is not None:
        scope = "The figures come from fewer runs than planned."
        if was_confirmed_whole(result):
            scope = "The confirmation was complete before that."
        if result.best is None:
            scope = "Nothing was confirmed."
        return f"Cut short: {result.cut_short.rstrip('.')}. {scope}"
    if result.best is None:
        return "No configuration could be confirmed."
    return None if (doubt := doubt_of(result, result.best)) is None else f"The answer is not confirmed: {doubt}"


def seen_once(result: TuningResult) -> tuple[str, ...]:
    """The best trial of a run that confirmed nothing. Empty: there is an answer."""
    if result.best is not None:
        return ()
    objective = result.config.objective
    timed = [(trial.measurement, trial.config) for trial in result.trials if trial.measurement is not None]
    if not timed:
        return ("No trial was measured.",)
    best, config = max(timed, key=lambda pair: pair[0].score(objective))
    rate = score_text(best.scored(objective).value, objective)
    return (f"The best trial, measured once: {rate} with {settings_text(config)}.",)


def batch_caution(result: TuningResult) -> tuple[str, ...]:
    """What another batch size changes in training. Empty: it is the baseline's."""
    if result.best is None or result.yours is None or result.best.config.batch_size == result.yours.batch_size:
        return ()
    return (
        f"Batch size {result.best.config.batch_size} instead of {result.yours.batch_size}: tune the learning rate "
        "again, check accuracy.",
    )


def keep_text(result: TuningResult, winner: Winner) -> str:
    """``Keep your settings: …`` where the winner is the baseline. Empty: something is proven better."""
    if winner.config != result.yours:
        return ""
    what, where, there = "your settings", "", ""
    if {"batch_size", "num_workers", "pin_memory", "precision"} <= set(result.assumed):
        what = f"PyTorch's defaults, here with an assumed batch size of {winner.config.batch_size}"
    if result.best is None or result.best.config != winner.config:
        where, there = f" at batch size {winner.config.batch_size}", " there"
    better = "faster" if result.config.objective == "samples-per-s" else "more efficient"
    return f"Keep {what}{where}: nothing else that was tried{there} is proven {better}."


def resource_text(limit: ResourceLimit) -> str:
    """With what it mostly does, where that tells more than its name."""
    share = {part: limit.shares.get(part, 0.0) for part in ("waiting", "copying", "synchronizing", "launching")}
    mostly = next((part for part, each in share.items() if each > MOSTLY), None)
    match limit.resource, mostly:
        case "workers", "waiting":
            return "the worker processes, which mostly wait (storage, network or sleep)"
        case "main", "copying" if "launching" in limit.shares:
            return "copies to the GPU"
        case "main", "launching":
            return "the training process, which launches the steps"
        case "main", _:
            return "the training process, which loads and computes in turn"
        case "device", "copying":
            return "copies to the GPU"
        case "device", "synchronizing":
            return "GradScaler's wait for the GPU in each step"
        case _:
            return RESOURCE_TEXT[limit.resource]


def bottleneck_sentence(result: TuningResult) -> tuple[str, ...]:
    """One resource and its probability. A limit below the measured rate is none that can be told."""
    found, best = result.bottleneck, result.best
    if found is None or best is None:
        return ()
    if not found.holds:
        return (f"Bottleneck: not known, because the throughput model does not fit this job ({misfit_text(found)}).",)
    first, rate = found.limits[0], found.limits[0].samples_per_s.value
    of = [] if best == (result.best_at_your_batch or best) else [f"at batch {best.config.batch_size}"]
    has_change = result.remedies is not None and result.remedies.config is not None
    of += ["without that change"] if has_change else []
    at_most = f"at most {number_text(rate)} samples/s, " if rate > best.samples_per_s else ""
    name = " ".join(["Bottleneck", *of])
    return (f"{name}: {resource_text(first)} ({at_most}probability {percent_text(first.probability)}).",)


def misfit_text(found: Bottleneck) -> str:
    """Of a model that does not hold: predictions that missed, and what its resources explain."""
    missed = (
        f"{found.num_missed} of its {counted(found.num_predicted, 'prediction')} missed; " if found.num_missed else ""
    )
    return f"{missed}it predicts {percent_text(found.explained)} of the measured throughput"


def late_sentence(result: TuningResult) -> tuple[str, ...]:
    """One slow worker, or single slow batches, where they cause most of the waiting."""
    late = None if result.bottleneck is None else result.bottleneck.late
    if late is None:
        return ()
    share = f"{percent_text(late.wait_fraction)} of the time blocked in next(loader)"
    if late.by == "worker":
        return (f"One worker takes {ratio_text(late.ratio)} as long for a batch as the others, which causes {share}.",)
    return (f"Single slow batches cause {share}; the longest took {ratio_text(late.ratio)} the usual time.",)


def changes_view(result: TuningResult) -> View | None:
    """All changes of the code that may gain, and what to paste for each. None: there are none.

    Measured ones first; of these, as of the others, the one with the largest gain first. Those that were not tried, for
    too little gain, come last; those that do not apply are left out.
    """
    found = result.remedies
    little = [each for each in found.left_out if each.reason is None] if found else []
    if found is None or result.best is None or not (found.tried or little):
        return None

    def shown(gain: Interval | None) -> str:
        return MISSING if gain is None else gain_text(gain)

    rows = [
        (
            f"{remedy_text(each.name)}{_other_settings(each.config, each.base)}",
            shown(each.predicted),
            shown(each.gain) if each.gain else each.reason or "not measured",
            each.changes,
        )
        for each in sorted(found.tried, key=lambda one: (one.gain is None, -_likely(one)))
    ]
    rows += [(remedy_text(each.name), shown(each.predicted), "too little gain", MISSING) for each in little]
    measured = "measured (99% CI)" if result.config.objective == "samples-per-s" else "measured, samples/J (99% CI)"
    columns = ("change", "predicted", measured, "what changes for training")
    table = Table(title="What a change in your code would bring", columns=columns, rows=tuple(rows))
    return View(tables=(table,), sections=(*_code(found.tried), *_settings(found, result)))


def kept_code(result: TuningResult) -> tuple[Section, ...]:
    """Of those that gain, in the order in which they can be pasted."""
    found = result.best and result.remedies
    return (*_code(each for each in found.tried if each.kept), *_settings(found, result)) if found else ()


def best_with_changes(result: TuningResult) -> tuple[str, ...]:
    """One sentence: what all changes that gain bring together, over the best alone. Empty: none was faster."""
    found, best = result.remedies, result.best
    if found is None or best is None or found.gain is None:
        return ()
    if found.config is None or found.samples_per_s is None:
        changed = next((each for each in result.finalists if each.config.remedies), None)
        if changed is None or found.gain.value < 1.0:
            return ()
        titles = "; ".join(each.title for each in found.tried if each.name in changed.config.remedies)
        runs = counted(len(changed.runs), "run")
        return (f"Not proven: a change of your code gained {gain_text(found.gain)} in {runs}: {titles}.",)
    titles = "; ".join(each.title for each in found.tried if each.kept)
    of = "" if result.config.objective == "samples-per-s" else " in samples/J"
    on = "" if best == (result.best_at_your_batch or best) else f" at batch {best.config.batch_size}"
    settings = _other_settings(found.config, best.config).replace(" and ", ", with ", 1)
    low, high = found.gain.low, found.gain.high
    interval = "no interval" if low is None or high is None else f"99% interval {low:.2f}–{high:.2f}"
    said = f"{ratio_text(found.gain.value)}{of} more{on} ({interval}), {rate_text(found.samples_per_s.value)}"
    caution = "" if found.config.batch_size == best.config.batch_size else ". Tune the learning rate again"
    return (f"A change of your code gains {said}: {titles}{settings}{caution}.",)


def _other_settings(config: TrialConfig, best: TrialConfig) -> str:
    """`` and 8 workers, fp16``: what it is measured with, where the best configuration has something else."""
    there = (best.batch_size, best.loader.num_workers, best.loader.pin_memory, best.precision)
    parts = {
        f"batch {config.batch_size}": config.batch_size,
        counted(config.loader.num_workers, "worker"): config.loader.num_workers,
        "pinned" if config.loader.pin_memory else "not pinned": config.loader.pin_memory,
        config.precision: config.precision,
    }
    changed = [words for (words, here), other in zip(parts.items(), there, strict=True) if here != other]
    return f" and {', '.join(changed)}" if changed else ""


def _likely(each: TriedRemedy) -> float:
    gain = each.gain or each.predicted
    return 0.0 if gain is None else gain.value


def _code(tried: Iterable[TriedRemedy]) -> tuple[Section, ...]:
    return tuple(
        Section(
            title=f"{remedy_text(each.name)}: {each.title}",
            note=f"What changes for training: {each.changes}.",
            lines=tuple(each.code.rstrip("\n").split("\n")),
        )
        for each in tried
        if each.code
    )


def _settings(found: Remedies, result: TuningResult) -> tuple[Section, ...]:
    """Settings that those which gain were measured with, where the best configuration has others.

    Without what the changes themselves set in the recipe: their own lines have that.
    """
    if found.config is None or result.best is None:
        return ()
    config, base = found.config, result.best.config
    before, plain = base.loader.kwargs(), replace(base.recipe, compile=config.recipe.compile)
    if "fused_optimizer" in config.remedies:
        plain = replace(plain, fused_optimizer=config.recipe.fused_optimizer)
    changed = [f"{name}={value!r}" for name, value in config.loader.kwargs().items() if before.get(name) != value]
    loader = [f"# loader = DataLoader(..., {', '.join(changed)})"] if changed else []
    lines = (*loader, *changed_statements(result, config, plain))
    note = "These changes of the code were measured with other settings."
    return (Section(title="settings for these changes", note=note, lines=lines),) if lines else ()
