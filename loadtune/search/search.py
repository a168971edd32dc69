"""The search: configurations of the space are tried as the throughput model proposes them, by expected improvement
(`model.answers`) after the user's own settings, until nothing more is worth a trial, or trials or time are spent.

`Search` is pure; `study` drives it in a run. Changes of the code are its last dimension.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from loadtune.changes import Situation
from loadtune.changes.stack import OF_LEFT, Stack
from loadtune.limits.memory import fits_host, prefetch_bytes, shm_refusal
from loadtune.model.answers import ENOUGH, HELD, WORTH, of_segment, propose
from loadtune.model.fit import ThroughputModel, points_at, segments_of
from loadtune.model.resources import PRIORS, Job, compute_s
from loadtune.records.answer import Failed, measured_of
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure, raise_for_the_user
from loadtune.records.result import Remedies, Trial
from loadtune.report.store import STUDY_FILE
from loadtune.run.budget import CODE_SHARE, SEARCH_SHARE, Budget
from loadtune.run.measure import Run, expected_seconds, outcome_text
from loadtune.run.state import Resumable
from loadtune.search.space import EPOCH_STEPS, NEAR, SearchSpace, largest_batches, roomiest, size
from loadtune.statistics.interval import Interval
from loadtune.units import counted, seconds_text

MOST = 400
"""Configurations that a proposal weighs: those with the highest predicted throughput that can be tried in time."""

MIN_RUNS = 2
"""Of whoever is named the winner, where time allows: one run has no interval, and the fastest of several was lucky."""

AS_GOOD = 0.99
"""Share of the best expected score from which on a smaller configuration is worth a place in the confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """A configuration to try."""

    config: TrialConfig
    predicted: Interval | None = None
    expected: float = math.inf
    """Improvement over the best so far, on the logarithm. Infinite: nobody knows."""


@dataclass(slots=True)
class Search:
    """Call `next`, try what it returns, and append the outcome to `trials`."""

    job: Job
    space: SearchSpace
    yours: TrialConfig | None
    """The user's own settings, tried before the model is asked. None: the space has no such point."""
    feasible: Callable[[Sequence[TrialConfig]], Sequence[TrialConfig]] = lambda configs: configs
    """Those of them that can run, by all that is known now."""
    left_s: Callable[[], float] = lambda: math.inf
    """Seconds of the run. What was not tried is of no use to it where two segments of it would take longer."""
    trials: list[Trial] = field(default_factory=list)
    """Also those of before an interruption. What failed is for `feasible` to know."""
    broken: str | None = None
    """Why the model cannot be fitted. None: it can. Without it configurations are ranked as they were measured."""
    _fitted: ThroughputModel | None = None
    _num_fitted: int = -1
    _all: list[TrialConfig] = field(default_factory=list)

    def next(self, left_s: float = math.inf) -> Next | str:
        """What to try next; or why nothing is left that is worth a trial, for people. Empty: only for want of time.

        ``left_s``: seconds for trials. A configuration whose queue could not be turned over once in it is not tried,
        nor one that could not be measured again afterwards.
        """
        if self.yours is not None and self.yours not in dict(measured_of(self.trials)) and self.feasible([self.yours]):
            return Next(config=self.yours)
        configs, ran = self.able(), dict(self._known)
        places = [at for at, config in enumerate(configs) if config in ran]
        if len(places) == len(configs):
            return "every configuration that can run was tried"
        model, points = self.model(), points_at(configs, self.job)
        if model is None:
            return str(self.broken)
        mean, most = model.mean(points), model.most(points)
        took_s = expected_seconds(configs, np.exp(mean), self.job.sample_s)
        if not places:  # nothing ran yet, or what ran no longer fits: the quickest of those expected to be best
            at = int(np.where(mean >= mean.max() + math.log(AS_GOOD), took_s, math.inf).argmin())
            return Next(config=configs[at], predicted=of_segment(model.predict(points[[at]]), 0))
        left_s = min(left_s, self.left_s() / (2 + MIN_RUNS))  # it is run twice more, and the user's own beside it
        longer, faster = took_s > left_s, np.minimum(mean, most) > mean[places].max() + math.log1p(WORTH)
        highest = np.argsort(np.where(longer, math.inf, -mean))[:MOST].tolist()
        weighed = sorted({*(at for at in highest if not longer[at]), *places})
        tried = [weighed.index(at) for at in places]
        at, predicted, expected = propose(model, points[weighed], tried, took_s[weighed], left_s, most[weighed])
        if expected < WORTH and (longer & faster).any():
            return ""
        held = [trial.held for trial in self.trials if trial.held is not None]
        if expected < ENOUGH and len(held) >= HELD and all(held[-HELD:]):
            return "no other configuration is likely to be faster"
        return Next(config=configs[weighed[at]], predicted=predicted, expected=expected)

    def ranked(self) -> list[TrialConfig]:
        """What was tried, best first, as the model expects it to be; what it does not know, as it was measured."""
        others = {config: measured.score for config, measured in measured_of(self.trials) if not self.space.has(config)}
        scores = self._by_expectation(list(dict(self._known))) | others
        return sorted(scores, key=lambda config: -scores[config])

    def best_at(self, batch_size: int) -> list[TrialConfig]:
        """With this batch size, tried or not: the best that the model expects, the smallest that is as good, and then
        the others, best first."""
        ranked = self._by_expectation([c for c in self.able() if c.batch_size == batch_size and not c.remedies])
        return list(dict.fromkeys([*list(ranked)[:1], *_smallest(ranked), *ranked]))

    def highest(self) -> TrialConfig | None:
        """What read highest without changes of the code, whatever the model makes of it. None: nothing ran."""
        tried = {config: measured.samples_per_s for config, measured in measured_of(self.trials) if not config.remedies}
        return max(self.feasible(list(tried)), key=tried.__getitem__, default=None)

    def roomiest(self, than: Sequence[TrialConfig] = ()) -> TrialConfig | None:
        """The smallest of those that the model expects to be near the best, tried or not, and to leave the device the
        most headroom; without changes of the code. None: one of ``than`` leaves as much."""
        rates = self._by_expectation([c for c in self.able() if not c.remedies])
        least = NEAR * max(rates.values(), default=0.0)
        near = {config: rate for config, rate in rates.items() if rate >= least}
        roomy = {config: near[config] for config in roomiest(near, self.compute_rates(list(near)))}
        return None if roomy.keys() & set(than) else next(iter(_smallest(roomy)), None)

    def compute_rates(self, configs: Sequence[TrialConfig]) -> dict[TrialConfig, float]:
        """Compute-only samples/s, without those with changes of the code. Empty on a CPU, whose cores load, too."""
        known = [c for c in configs if self.job.on_gpu and c.precision in self.job.compute and not c.remedies]
        seconds = compute_s(self.job, points_at(known, self.job), np.array(PRIORS["small"].median))
        return dict(zip(known, (1 / seconds).tolist(), strict=True))

    def changed(self) -> TrialConfig | None:
        """The best expected with changes of the code, of those that ran if any did. None: there is none."""
        able = [config for config in self.able() if config.remedies]
        ran = [config for config, _ in measured_of(self.trials) if config in able]
        return next(iter(self._by_expectation(ran or able)), None)

    def model(self) -> ThroughputModel | None:
        """Fitted to what was tried. None: that cannot be, see `broken`."""
        known = self._known
        if self._num_fitted != len(known):
            self._fitted, self.broken, self._num_fitted = None, None, len(known)
            try:
                self._fitted = ThroughputModel(self.job, segments_of(known, self.job))
            except (ValueError, ArithmeticError) as error:  # numpy's LinAlgError is a ValueError
                self.broken = f"the throughput model does not fit what was measured ({error})"
        return self._fitted

    def able(self) -> Sequence[TrialConfig]:
        """All that the model knows of, that fits into memory and has not failed."""
        self._all = self._all or list(self.space.modelled())
        return self.feasible(self._all)

    def _by_expectation(self, configs: Sequence[TrialConfig]) -> dict[TrialConfig, float]:
        """Best first, each with its expected rate; without those that could not be run twice in the time left."""
        rates = self._rates(configs)
        took_s, most_s = expected_seconds(configs, rates, self.job.sample_s), self.left_s() / MIN_RUNS
        known, order = dict(self._known), np.argsort(-rates, kind="stable")
        return {configs[at]: float(rates[at]) for at in order if took_s[at] <= most_s or configs[at] in known}

    @property
    def _known(self) -> list[tuple[TrialConfig, Measurement]]:
        """What the model can be fitted to, each at its point of the space: the baseline with workers that outlive an
        epoch, as all others have. That changes no rate."""
        tried = measured_of(self.trials)
        return [(self.space.nearest(config), measured) for config, measured in tried if self.space.has(config)]

    @property
    def trial_s(self) -> float:
        """Of those that were measured, on average; 1 before the first."""
        return statistics.fmean([measured.seconds for _, measured in measured_of(self.trials)] or [1.0])

    def lasts_s(self, config: TrialConfig) -> float:
        """As long as its trial; without one as trials last and as the model expects, whichever is longer."""
        if own := [measured.seconds for other, measured in measured_of(self.trials) if other == config]:
            return statistics.fmean(own)
        if config.precision not in self.space.recipes or self.model() is None:
            return self.trial_s
        rates = self._rates([self.space.nearest(config)])
        return max(self.trial_s, float(expected_seconds([config], rates, self.job.sample_s)[0]))

    def _rates(self, configs: Sequence[TrialConfig]) -> NDArray[np.float64]:
        """Expected samples/s. Without a model as they were measured, and 0 where they were not."""
        if (model := self.model()) is not None:
            return np.exp(model.mean(points_at(configs, self.job)))
        measured = {config: run.samples_per_s for config, run in self._known}
        return np.array([measured.get(config, 0.0) for config in configs])


def _smallest(ranked: Mapping[TrialConfig, float]) -> list[TrialConfig]:
    """Of those that are as good as the first, the one with the fewest workers, then the smallest batch; or nothing."""
    best = max(ranked.values(), default=0.0)
    return sorted((config for config, rate in ranked.items() if rate >= AS_GOOD * best), key=size)[:1]


# What is known before the first trial, as the throughput model takes it


def model_job(
    facts: WorkloadFacts,
    host: HostFacts,
    device: Device,
    recipes: Mapping[Precision, Recipe],
    compute_points: Sequence[ComputePoint],
    stack: Stack | None = None,
) -> Job:
    """What is known before the first trial, also with each change of the ``stack``. A precision that was not timed
    counts as the first one that was."""
    curves = dict[str, tuple[tuple[float, float], ...]]()
    for precision, recipe in recipes.items():
        timed = sorted((point.batch_size, point.samples_per_s) for point in compute_points if point.recipe == recipe)
        curves[precision] = tuple((float(size), 1 / rate) for size, rate in dict(timed).items())  # the fastest of each
    known = next(curve for curve in curves.values() if curve)
    job = Job(
        sample_s=facts.sample_s,
        sample_cpu_s=facts.sample_s if facts.sample_cpu_s is None else facts.sample_cpu_s,
        sample_bytes=float(facts.sample_bytes),
        num_cores=max(1, host.num_usable_cores) / facts.num_ranks,
        on_gpu=device.kind == "cuda",
        compute={precision: curve or known for precision, curve in curves.items()},
        syncing=frozenset(str(precision) for precision, recipe in recipes.items() if recipe.waits_each_step),
    )
    return job if stack is None else replace(job, changed=stack.jobs(job))


# In a run

MIN_TRIALS = 2
"""Run where the final can still run as many: the user's own settings and the first proposal, so that there are two to
compare. A search that goes on runs one more."""

CODE_TRIALS = 2
"""With changes of the code, beyond those of the settings."""

FEW = 6
"""Trials, below which a search that time ended is worth a word."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace, stack: Stack | None = None) -> Search:
    """Search the space; the user's own loader settings come first. Returns what was learned. ``stack``: the changes of
    the code that the space has."""
    from loadtune.search.study import OptunaStudy  # late: half a second that the training's start hides

    state, budget, journal, trials = run.state, run.budget, run.journal, run.state.trials
    with journal.stage("changes" if searched.codes else "study"):
        if (yours := state.yours) is not None:
            now = run.host_now()
            most = replace(yours.loader, num_workers=min(max(searched.num_workers), now.num_usable_cores))
            refused = [shm_refusal(loader, facts.sample_bytes, now) for loader in (yours.loader, most)]
            journal.note(*[f"{each} What does not fit was not tried." for each in refused if each is not None][:1])
            yours = replace(yours, recipe=searched.recipes.get(yours.precision, yours.recipe))  # as it was chosen
        search = Search(
            job=model_job(facts, state.host, state.device, searched.recipes, state.compute_points, stack),
            space=searched,
            yours=yours if yours and searched.has(yours) else None,
            feasible=partial(feasible, state, facts, run.host_now),
            left_s=lambda: budget.left_s,
            trials=trials,  # also of before an interruption, or of the search without changes of the code
        )
        shown = OptunaStudy(searched, trials)
        show = partial(journal.aside, f"{STUDY_FILE} lacks trials", partial(shown.write, journal.folder / STUDY_FILE))
        show()
        if state.search_notes is not None or (state.steps and not searched.codes):  # before an interruption
            journal.note(*(state.search_notes or ()))
            return search
        num_before, begun_s = [*(bool(each.config.remedies) for each in trials), True].index(True), budget.clock()
        while isinstance(asked := _upcoming(state, budget, search, begun_s, num_before), Next):
            # What cannot be run again twice in the time left is of no use, unless it is the user's own.
            limit_s = math.inf if asked.config == state.yours else budget.left_s / (1 + MIN_RUNS)
            outcome = run.timed(asked.config, limit_s)
            raise_for_the_user(None if asked.config.remedies else outcome)
            trial = Trial.of(asked.config, outcome, number=len(trials), predicted=asked.predicted)
            trials.append(trial)
            journal.save()
            journal.tell(f"trial {len(trials)}/{state.config.num_trials}: {outcome_text(asked.config, outcome)}")
            shown.add(trial)
            show()
        journal.tell(f"The search ended: {asked or 'its share of the time budget was used'}.")
        state.search_notes = tuple(_end_notes(state, search, is_short=not asked))
        journal.note(*state.search_notes)
        journal.save()
    return search


def _upcoming(state: Resumable, budget: Budget, search: Search, begun_s: float, num_before: int) -> Next | str:
    """What to try now; or why the search is over. Empty: time is short.

    ``num_before``: trials of before this search, which began at ``begun_s``.
    """
    of_code, num_run = bool(search.space.codes), len(state.trials)
    share = CODE_SHARE if of_code else SEARCH_SHARE
    share += CODE_SHARE if state.config.workload.command else 0.0  # of a script no change of its code is searched
    most = max(state.config.num_trials, num_before + CODE_TRIALS if of_code else 0)
    if num_run >= most:
        return f"{counted(most, 'trial')} {'was' if most == 1 else 'were'} measured"
    now = budget.clock()
    each_s = search.trial_s if measured_of(state.trials) or state.yours is None else search.lasts_s(state.yours)
    # The final needs two runs; where there is no time for a third, it makes do with what the model expects.
    must, left_s = num_run < max(MIN_TRIALS, num_before + 1) and budget.left_s >= (1 + MIN_TRIALS) * each_s, math.inf
    if not must:  # as many as end before, if they take as long as those so far; and then two are still run again
        until_s = budget.search_until_s(begun_s, math.inf, share)
        left_s = min(until_s - now, budget.left_s - 2 * MIN_RUNS * each_s)
    asked = search.next(left_s) if left_s >= each_s else ""
    if isinstance(asked, str) or must:
        return asked
    ends_s = now + max(each_s, search.lasts_s(asked.config))  # on a CPU, trials of larger batches take longer
    return asked if ends_s <= budget.search_until_s(begun_s, asked.expected, share) else ""


# What can run: by the memory ceilings, the host's memory now, and the trials that failed


def feasible(
    state: Resumable, facts: WorkloadFacts, host_now: Callable[[], HostFacts], configs: Sequence[TrialConfig]
) -> list[TrialConfig]:
    """Those of them that can run, by all that is known now."""
    largest, failed = largest_batches(state.config, state.ceilings), state.failed
    able = [
        config
        for config in configs
        if config.batch_size <= largest.get(config.precision, config.batch_size)
        and not any(_rules_out(tried, failure, config, facts) for tried, failure in failed)
    ]
    fitting = {config for config in able if fits_host(config.loader, facts.sample_bytes, state.share)}
    if len(fitting) == len(able):
        return able
    now = host_now()  # virtual machines show 31 GiB at first and grow to 256
    return [each for each in able if each in fitting or fits_host(each.loader, facts.sample_bytes, now)]


def _rules_out(tried: TrialConfig, failure: TrialFailure, config: TrialConfig, facts: WorkloadFacts) -> bool:
    """Whether the failure of a trial says that a configuration cannot run either."""
    if tried.remedies and not failure.is_of_memory:
        return set(tried.remedies) <= set(config.remedies)
    if tried.remedies and tried.remedies != config.remedies:
        return False
    if failure.kind == "non_finite_loss":
        return tried.precision in ("fp32", config.precision)
    if failure.kind == "oom":  # in its precision, as ceilings are
        return config.precision == tried.precision and config.batch_size >= tried.batch_size
    if failure.is_of_memory:
        return prefetch_bytes(config.loader, facts.sample_bytes) >= prefetch_bytes(tried.loader, facts.sample_bytes)
    return config == tried


# Changes of the code


def changes(run: Run, facts: WorkloadFacts, search: Search) -> Stack | None:
    """Those that are worth trying. None: nothing ran, time is short, ``--remedies none``, or the job is a command."""
    state, budget, journal = run.state, run.budget, run.journal
    best = next((config for config in search.ranked() if not config.remedies), None)
    # Where examining takes too long, the training is ended and starts again.
    is_too_late = not state.steps and budget.spare_s < journal.stage_seconds.get("start", 0.0)
    if state.config.workload.command or state.config.remedies == "none" or best is None or is_too_late:
        return None
    with journal.stage("changes"):
        stack = Stack(
            at=Situation(
                config=search.roomiest([best]) or best,
                spec=state.config.workload,
                facts=facts,
                device=state.device,
                precisions=tuple(search.space.recipes),
            ),
            training=run.training,
            model=search.model(),
            able=search.able(),
            left_s=lambda: budget.left_s,
            tries_all=state.config.remedies == "all",
            steps=list(state.steps),
        )
        if not state.steps:  # else they were examined before an interruption
            run.training.until_s = budget.until(OF_LEFT)
            journal.aside("Not all changes of the code were examined", stack.build)  # after Ctrl-C nothing is asked
            run.training.until_s = budget.until(1.0)
            state.steps = tuple(stack.steps)
            if stack.is_short:
                journal.note("No time was left to try changes of your code. A larger --time-budget tries them.")
            if stack.steps and not state.confirmed:
                state.search_notes = None  # it goes on, with them
                journal.tell(f"Changes of your code to try: {'; '.join(step.remedy.title for step in stack.steps)}.")
        tried = partial(stack.tried, stack.config)  # for a run that is cut short before the final
        state.remedies = Remedies(tried=journal.aside("Changes of the code are not shown", tried) or ())
    return stack


# What the end of a search left untried, in words


def _end_notes(state: Resumable, search: Search, *, is_short: bool) -> Iterator[str]:
    """What of the search's end a user should know, a line each. ``is_short``: time ended it."""
    num_trials = len(state.trials)
    if search.broken is not None:
        yield f"The search ended early: {search.broken}."
    if is_short and (why := hung(state.failed)):
        yield f"The search ended early because {why}."
    elif is_short and num_trials < FEW:
        yield (
            f"The search ended after {counted(num_trials, 'trial')}, when its part of the time budget of "
            f"{seconds_text(state.config.time_budget_s)} was used. A larger --time-budget may find a faster "
            "configuration."
        )
    tried, sizes = search.ranked(), search.space.batch_sizes
    if tried and len(sizes) > 1 and tried[0].batch_size == sizes[-1] < max(search.space.ceilings.values()):
        yield (
            f"Batch sizes above {sizes[-1]} were not tried: an epoch would have fewer than {EPOCH_STEPS} steps. Give "
            "one with --fix batch_size=… to try it."
        )


def hung(failed: Sequence[Failed]) -> str:
    """What hung, in words, and took the time that others lack: a larger budget would go the same way. Empty: none."""
    found = [failure for _, failure in failed if failure.kind == "hang"]
    return f"{counted(len(found), 'trial')} hung: {found[-1].message.rstrip('.')}" if found else ""
