"""A result in words. Names and figures: settings, recipes, limits, failures, gains with their intervals. Sentences: the
answer and how sure it is, what limits it, what each step and change gains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import HostFacts
from loadtune.records.loading import steps_text
from loadtune.records.measurement import DISTURBED, LAST_SHARE, FailureKind, RecipeChoice, TrialFailure, taken_by_others
from loadtune.records.memory import LIMIT_TEXT, CeilingLimit
from loadtune.records.result import (
    ChangeKind,
    Finalist,
    Part,
    Resource,
    Result,
    Winner,
    finalist_of,
    measured_of,
)
from loadtune.records.statistics import Interval, gain_text
from loadtune.units import counted, number_text, percent_text, rate_text, ratio_text

PRECISION_TEXT: Mapping[Precision, str] = {
    "fp32": "fp32 (no AMP)",
    "fp16": "fp16 (AMP)",
    "bf16": "bf16 (AMP)",
    "own": "as in your script",
}

RESOURCE_TEXT: Mapping[Resource, str] = {
    "workers": "the worker processes",
    "cores": "the CPU cores",
    "pinning": "the pinning thread",
    "main": "the training process",
    "device": "the GPU",
}

STAGE_TEXT: Mapping[str, str] = {"study": "search", "verify": "verify memory"}
"""Stages whose name in the result is not what a user reads."""

FAILURE_TEXT: Mapping[FailureKind, str] = {
    "oom": "out of memory",
    "host_oom": "out of RAM",
    "shm": "/dev/shm full",
    "crash": "crashed",
    "hang": "hung",
    "user_error": "raised",
    "unsupported": "unsupported",
    "non_finite_loss": "NaN/inf loss",
    "too_slow": "too slow",
}
"""Of a table's width: 13 characters at most."""


def interval_text(found: Interval) -> str:
    """``4,050 ± 162``; ``345 (0–745)`` where the interval includes 0; the value alone where there is none."""
    value, half = number_text(found.value), found.half_width
    if half is None:
        return value
    return f"{value} ± {number_text(half)}" if half < found.value else f"{value} (0–{number_text(found.high)})"


def limit_text(limit: CeilingLimit, device_kind: str) -> str:
    """With the name of the option, and of the memory: a CPU's is the machine's."""
    named = {"memory": "GPU memory" if device_kind == "cuda" else "RAM", "cap": "--max-batch-size"}
    return named.get(limit, LIMIT_TEXT[limit])


def settings_text(config: TrialConfig, *, with_recipe: bool = True) -> str:
    """One line: ``batch 256, 16 workers, pinned, fp16, channels_last, fused optimizer, with uint8 transfer``.

    Without the recipe, which every trial of a precision shares, it ends with the precision.
    """
    loader = config.loader
    parts = [
        f"batch {loader.batch_size}",
        counted(loader.num_workers, "worker"),
        *([f"prefetch_factor={loader.prefetch_factor}"] if loader.num_workers and loader.prefetch_factor != 2 else []),
        "pinned" if loader.pin_memory else "not pinned",
        "your script's own precision" if config.precision == "own" else config.precision,
        *([] if loader.in_order else ["in_order=False"]),
        *([] if loader.persistent_workers else ["persistent_workers=False"]),
        *(_recipe_parts(config.recipe) if with_recipe else []),
    ]
    # Remedies that only turn on a setting are named as that setting.
    named = [words for name in config.remedies if (words := remedy_text(name)) not in parts]
    return ", ".join(parts) + (f", with {' and '.join(named)}" if named else "")


def _recipe_parts(recipe: Recipe) -> list[str]:
    parts = {
        "channels_last": recipe.memory_format == "channels_last",
        "fused optimizer": recipe.fused_optimizer,
    }
    return [name for name, used in parts.items() if used]


def remedy_text(name: str) -> str:
    """A remedy in two words or three, by its name: ``uint8 transfer``."""
    return name.replace("_", " ")


def recipe_text(recipe: Recipe) -> str:
    return (
        PRECISION_TEXT["own"] if recipe.precision == "own" else ", ".join(_recipe_parts(recipe)) or "PyTorch's defaults"
    )


def precision_name(precision: Precision) -> str:
    """At the beginning of a line about this precision."""
    return "your script" if precision == "own" else precision


def recipe_line(choice: RecipeChoice) -> str:
    """``fp16: channels_last, chosen from 3 variants, each timed once``: too little for a ratio."""
    timed = f"chosen from {len(choice.points)} variants, each timed once" if len(choice.points) > 1 else "timed once"
    return f"{choice.chosen.precision}: {recipe_text(choice.chosen)}, {timed}"


# Sentences

QUIETER = "Run again on a quieter machine."


def non_finite_text(config: TrialConfig, failure: TrialFailure) -> str:
    what = f"ith {settings_text(config)} {failure.message.rstrip('.')}."
    if config.precision == "fp32":
        return (
            f"W{what} No precision has a wider range than fp32, so the dataset, the model or the loss gives values "
            "that are not finite. Check that every sample is finite, and that model and loss give finite values for it."
        )
    return (
        f"{config.precision} is not recommended: w{what} Leave {config.precision} out with --precision, or change the "
        "model so that it trains in it."
    )


def failures_text(num_measured: int, failures: Sequence[TrialFailure]) -> str:
    """As a clause: ``1 of its 4 runs failed (crash: it died)``."""
    first = failures[0]
    num_runs = counted(num_measured + len(failures), "run")
    return f"{len(failures)} of its {num_runs} failed ({first.kind}: {first.message.rstrip('.')})"


def unconfirmed_text(finalist: Finalist) -> str | None:
    """Why it is never the answer, with figures and what to do, after its name. None: nothing rules it out."""
    why = finalist.unconfirmed
    if why is None:
        return None
    if why.reason == "non_finite_loss":
        return non_finite_text(why.config, why.failures[0])
    if why.reason == "failed":
        cause = "Remove the cause and run again: training for hours would meet it too."
        return f"{failures_text(len(finalist.runs), why.failures)}. {cause}"
    return (
        f"it reads {rate_text(finalist.samples_per_s)}, more than its compute-only rate of "
        f"{rate_text(why.compute_per_s)}: one of the two rates is wrong, because no loader makes a step faster. "
        f"{QUIETER}"
    )


ASSUMED = {"batch_size", "num_workers", "pin_memory", "precision"}
"""Settings that a user may leave out."""

_MOSTLY_TEXT = {
    ("workers", "waiting"): "the worker processes, which mostly wait (storage, network or sleep)",
    ("main", "launching"): "the training process, which launches the steps",
    ("main", "loading"): "the training process, which loads the samples itself",
    ("device", "copying"): "copies to the GPU",
    ("device", "synchronizing"): "GradScaler's wait for the GPU in each step",
}
_LOADING: tuple[Part, ...] = ("waiting", "loading", "collating")
_NEARLY = 0.1
"""From which on the steps of loading are told: the probability that loading limits; where no model says that, the share
of the time blocked in ``next(loader)``."""
_CHANGES: dict[ChangeKind, str] = {"twice_the_cores": "twice the cores", "half_the_loading": "half the loading time"}


def warning(result: Result) -> str | None:
    """That the run was cut short, or confirmed nothing. None: it went to its end with an answer."""
    if result.cut_short is not None:
        num_kept = sum(each.measurement is not None for each in result.trials)
        num_kept += sum(len(each.runs) for each in result.finalists)
        scope = "The figures come from fewer runs than planned."
        if result.confirmed_whole:
            scope = "The confirmation was complete before that."
        if result.best is None:
            scope = "Nothing was confirmed."
        kept = f"{counted(num_kept, 'measurement')} {'is' if num_kept == 1 else 'are'} kept. " if num_kept else ""
        return f"Cut short: {result.cut_short.rstrip('.')}. {kept}{scope}"
    if result.best is None:
        return "No configuration could be confirmed."
    doubt = None if result.best.config == result.yours else doubt_of(result, result.best)  # which `keep_text` says
    return doubt and f"The answer is not confirmed: {doubt}"


def doubt_of(result: Result, winner: Winner) -> str | None:
    """Why a winner that may be used is not confirmed: a sentence. None: it is."""
    budget_s, took_s = result.config.time_budget_s, [each.runs[-1].seconds for each in result.finalists]
    one_more_s = sum(took_s) + max(took_s, default=0.0) + LAST_SHARE * budget_s  # a round of the final, and a run
    longer = ["with a larger --time-budget"] if budget_s - result.seconds <= one_more_s else []
    if winner.half_width_fraction is None:
        return f"nothing was measured twice. {' '.join(['Run again', *longer])}."
    if winner.rival_gain is not None and winner.inconclusive:
        most, busy = winner.rival_gain.high or math.inf, busy_text(result.finalists, result.host)
        others = f"up to {ratio_text(most)} as fast" if most < 10 else "many times as fast"
        known = f"throughput is known to ±{percent_text(winner.half_width_fraction)}.{f' {busy}' if busy else ''}"
        again = ", or ".join([*(["on a quieter machine"] if busy or not longer else []), *longer])
        return f"your settings may be best, or others {others}; {known} Run again {again}."
    finalist = finalist_of(result.finalists, winner)
    if finalist is not None and finalist.unconfirmed is not None:
        return unconfirmed_text(finalist)
    if not result.confirmed_whole:
        why = f" ({result.cut_short.rstrip('.')})" if result.cut_short else ""  # killed as it ended: why is not stored
        return f"the run was cut short before every run of the confirmation was made{why}."
    return None


def busy_text(finalists: Sequence[Finalist], host: HostFacts) -> str | None:
    """What other processes used while the confirmation ran. None: nothing worth a word."""
    taken = [taken_by_others(run, host) for finalist in finalists for run in finalist.runs]
    share, name = max(taken, default=(0.0, ""))
    if share < DISTURBED:
        return None
    num_disturbed = sum(each >= DISTURBED for each, _ in taken)
    runs = f"{num_disturbed} of {counted(len(taken), 'run')} of the confirmation"
    return f"Other processes used up to {percent_text(share)} of the {name} in {runs}."


def seen_once(result: Result) -> tuple[str, ...]:
    """The best trials of a run without an answer: without and with changes of the code. Empty: it has other figures."""
    if result.best is not None:
        return ()
    seen = (*_best_trial(result, changed=False), *_best_trial(result, changed=True))
    return seen or (() if result.finalists else ("No trial was measured.",))


def _best_trial(result: Result, *, changed: bool) -> tuple[str, ...]:
    """``changed``: with changes of the code, or without. Empty: none was measured."""
    timed = {run.samples_per_s: each for each, run in measured_of(result.trials) if bool(each.remedies) == changed}
    if not timed:
        return ()
    config, once = timed[max(timed)], f"{rate_text(max(timed))} (one measurement, not confirmed)"
    what = f"With a change of your code ({titles_text(result, config)})" if changed else "The best trial"
    return (f"{what}: {once} with {settings_text(replace(config, remedies=()))}.",)


def titles_text(result: Result, config: TrialConfig) -> str:
    """What its changes of the code are, by their titles. Empty: it has none."""
    titles = {each.name: each.title for each in (result.remedies.tried if result.remedies else ())}
    return "; ".join(titles.get(name, remedy_text(name)) for name in config.remedies)


def answer_text(result: Result, winner: Winner) -> str:
    """The answer, as every view says it: the rate and the gain, or why the user's settings stay.

    The gain alone where the interval of the rate reaches 0: then only the gain is proven.
    """
    found, known, gain = finalist_of(result.finalists, winner), winner.throughput, winner.speedup
    of, ranks = "", result.facts.num_ranks if result.facts else 1
    if ranks > 1:
        in_all = f"{number_text(ranks * known.value)} in all with {ranks * winner.config.batch_size:,} samples a step"
        of = f" on each of {ranks} ranks ({in_all})"
    rate = f"{interval_text(known)} samples/s{of}{' (1 run)' if found and len(found.runs) == 1 else ''}"
    if kept := keep_text(result, winner):
        return f"{kept} Baseline: {rate}."
    base = "PyTorch's defaults" if set(result.assumed) >= ASSUMED else "your settings"
    if gain is None:
        return f"{rate}; {base} could not be measured."
    ratio, _, interval = gain_text(gain, "99% interval ").partition(" ")
    is_known = known.low is None or known.low > 0
    return f"{f'{rate}, ' if is_known else ''}{ratio} {base} {interval}."


def shown_winner(result: Result) -> Winner | None:
    """The answer: at the user's batch size, unless something is proven at another one alone. None: there is none."""
    at_yours = result.best and (result.best_at_your_batch or result.best)
    return result.best if at_yours is None or at_yours.config == result.yours else at_yours


def names(result: Result) -> dict[TrialConfig, str]:
    """What tables and figures call the ``answer``, the ``best`` at any batch size, where that is another one, and the
    ``baseline``."""
    answer = shown_winner(result)
    found = {} if answer is None else {answer.config: "answer"}
    found = {} if result.best is None else found | {result.best.config: found.get(result.best.config, "best")}
    return found if result.yours is None else found | {result.yours: "baseline"}


def answer_lines(result: Result, winner: Winner, where: str = "") -> tuple[str, ...]:
    """The answer, what another batch size brings, and what changes of the code bring: first what is proven. ``where``
    the code of the changes is."""
    other, changes = _other_batch(result, winner), tuple(each + where for each in best_with_changes(result))
    if winner.config == result.yours and result.remedies and result.remedies.config:
        return (*changes, headline(result, winner), *other)
    return (headline(result, winner), *other, *changes)


def headline(result: Result, winner: Winner) -> str:
    """With the batch size, where the user gave one and may get another."""
    at = f"Batch {winner.config.batch_size}: " if result.best_at_your_batch and winner.config != result.yours else ""
    return at + answer_text(result, winner)


def _other_batch(result: Result, winner: Winner) -> tuple[str, ...]:
    """What another batch size than the user's brings, and changes in training."""
    best, at_yours, yours = result.best, result.best_at_your_batch, result.yours
    if best is not None and best.config.batch_size != winner.config.batch_size:
        return (f"{headline(result, best)} Tune the learning rate again.",)
    kept = keep_text(result, at_yours) if at_yours and at_yours != winner else ""
    if yours is None or winner.config.batch_size == yours.batch_size:
        return (kept,) if kept else ()
    changed = f"Batch size {winner.config.batch_size} instead of {yours.batch_size}"
    return (f"{changed}: tune the learning rate again, check accuracy.", *([kept] if kept else []))


def keep_text(result: Result, winner: Winner) -> str:
    """``Keep your settings: …`` or ``Nothing is proven: …``. Empty: something else is proven better."""
    if winner.config != result.yours:
        return ""
    what, where, there = "your settings", "", ""
    if result.best is None or result.best.config != winner.config:
        where, there = f" at batch size {winner.config.batch_size}", " there"
    if not result.finalists[1:]:
        return "Nothing is proven: nothing but your settings was measured in the confirmation."
    if (doubt := doubt_of(result, winner)) and (winner.inconclusive or result.cut_short is None):
        return f"Nothing is proven{where}: {doubt}"
    if set(result.assumed) >= ASSUMED:
        what = f"PyTorch's defaults, here with an assumed batch size of {winner.config.batch_size}"
    most = winner.rival_gain and winner.rival_gain.high
    gains = f"gains more than {percent_text(max(most - 1, 0.001), 1)}" if most else "is proven faster"
    return f"Keep {what}{where}: nothing else that was tried{there} {gains}."


def limit_sentences(result: Result) -> tuple[str, ...]:
    """The bottleneck, then the largest steps of loading where loading limits, or nearly does."""
    model, best = result.bottleneck, finalist_of(result.finalists, result.best)
    if model is not None and model.holds:
        probable = [each for each in model.limits if each.probability >= _NEARLY]
        is_told = any(sum(each.shares.get(part, 0.0) for part in _LOADING) > 0.5 for each in probable)
    else:
        is_told = best is not None and fmean(run.wait_fraction for run in best.runs) >= _NEARLY
    if not (is_told and result.steps):
        return bottleneck_sentence(result)
    return (*bottleneck_sentence(result), f"Loading spends {steps_text(result.steps)}.")


def bottleneck_sentence(result: Result) -> tuple[str, ...]:
    """One resource and its probability. A limit below the measured rate is none that can be told."""
    found, best = result.bottleneck, result.best
    if found is None or best is None:
        return ()
    if not found.holds:
        wrong = f"{percent_text(abs(found.explained - 1))} too {'high' if found.explained > 1 else 'low'}"
        if found.num_missed:
            wrong += f", and it missed {found.num_missed} of {counted(found.num_predicted, 'trial')}"
        return (f"Bottleneck: cannot be named, because the throughput model reads {wrong}.",)
    first, rate = found.limits[0], found.limits[0].samples_per_s.value
    mostly = next((part for part, share in first.shares.items() if share > 0.5), "")
    name = _MOSTLY_TEXT.get((first.resource, mostly), RESOURCE_TEXT[first.resource])
    at = "" if best == (result.best_at_your_batch or best) else f" at batch {best.config.batch_size}"
    at_most = f"at most {number_text(rate)} samples/s, " if rate > best.samples_per_s else ""
    return (f"Bottleneck{at}: {name} ({at_most}probability {percent_text(first.probability)}).",)


class Gain(NamedTuple):
    name: str
    ratio: Interval
    """Throughput after ÷ before."""
    is_measured: bool
    """False: predicted by the throughput model."""


def steps(result: Result, winner: Winner) -> tuple[Gain, ...]:
    """What each lever brings, pulled one after another from the user's settings to the answer.

    Levers between which no contestant of the final stands are told together.
    """
    start, end = result.yours, winner.config
    if start is None or start == end:
        return ()
    loader = replace(end.loader, batch_size=start.batch_size)
    path = {
        "baseline": start,
        "workers and pinning": replace(start, loader=loader),
        "precision and memory format": replace(end, loader=loader),
        "batch size": end,
    }
    found, names, last = list[Gain](), list[str](), finalist_of(result.finalists, start)
    for (_, before), (name, after) in pairwise(path.items()):
        names += [name] if before != after else []
        reached = finalist_of(result.finalists, after)
        if names and last is not None and reached is not None:
            ratio = Interval(value=reached.samples_per_s / last.samples_per_s)
            found.append(Gain(" together with ".join(names), ratio, True))
            names, last = [], reached
    return tuple(found)


def changes(result: Result) -> tuple[Gain, ...]:
    """On top of the best: the changes of the code that gain together, each by itself, then what other hardware or
    samples are predicted to bring."""
    found, remedies, model = list[Gain](), result.remedies, result.bottleneck
    if remedies is not None:
        kept = () if remedies.config is None else remedies.config.remedies
        if kept and remedies.gain is not None:
            found.append(Gain(" and ".join(map(remedy_text, kept)), remedies.gain, True))
        found += [
            Gain(remedy_text(each.name), gain, each.gain is not None)
            for each in remedies.tried
            if each.name not in kept and (gain := each.gain or each.predicted)
        ]
    if model is not None and model.holds:
        found += [Gain(_CHANGES[kind], gain, False) for kind, gain in model.predicted.items()]
    return tuple(found)


def best_with_changes(result: Result) -> tuple[str, ...]:
    """One sentence: what changes bring together, over the best alone, proven or not. Empty: none was measured."""
    found, best = result.remedies, result.best
    if found is None or best is None:
        return ()
    changed = next((each for each in result.finalists if each.config.remedies), None)
    if found.gain is None or changed is None:
        return _best_trial(result, changed=True)
    config, what = changed.config, titles_text(result, changed.config)
    if (config.loader, config.precision) != (best.config.loader, best.config.precision):
        what += f", with {settings_text(replace(config, remedies=()), with_recipe=False)}"
    if config.batch_size != best.config.batch_size:
        what += ". Tune the learning rate again"
    if found.config is None:
        return (f"Not proven: a change of your code gained {gain_text(found.gain, '99% interval ')}: {what}.",)
    on = "" if best == (result.best_at_your_batch or best) else f" at batch {best.config.batch_size}"
    gain = f"{gain_text(found.gain, '99% interval ')}{on}, {rate_text(changed.samples_per_s)}"
    return (f"A change of your code gains {gain}: {what}.",)
