"""When one timed run has seen enough: the rules put together, over windows. No clock, no bench."""

from collections.abc import Sequence

from loadtune.records import Window, half_width_fraction, samples_per_s
from loadtune.records.intervals import halves_agree, relative_sd
from loadtune.study.stopping_rules import (
    Delivered,
    Hopeless,
    NoiseSettled,
    Precise,
    Rule,
    Standing,
    Steady,
    TimeUp,
    WarmUp,
)

TARGET = 0.02
"""Half width of the 95% interval at which a run is precise enough: a third of what fresh loaders differ by."""

EARLIEST, LATEST = 0.5, 2.0
"""Times the allowed seconds before which no run ends for being known well enough, and at which it ends whatever it
still lacks."""

MAX_LEFT_OUT = 8
"""Windows that are left out after the warm-up because they or a later one still settled. A scale that fits is found in
fewer; a run that goes on like that is measured as it is, and called noisy."""


class StoppingRule:
    """Drop what is warming up or settling, then collect windows until the rate is known well enough or the time is up.

    `add` is told each window and answers whether to go on. `max_s` is how many seconds of counted windows are allowed,
    unless whole rounds of the workers take longer; twice that at the most. Once as much was left out for settling,
    nothing more is. `best` is the incumbent's samples/s, to end hopeless runs early; None: there is none yet, or every
    run counts. `batch_s` is how long a batch takes a worker: at least that long, or `max_s`, it warms up.
    """

    def __init__(
        self,
        *,
        num_workers: int,
        max_s: float,
        target: float = TARGET,
        best: float | None = None,
        batch_s: float = 0.0,
    ) -> None:
        self.kept: list[Window] = []
        self._dropped: list[Window] = []
        self._left_out: list[Window] = []
        self._most_left_out_s = LATEST * max_s
        self._warm_up = WarmUp(num_workers, max_s, batch_s)
        self._steady, self._precise = Steady(), Precise(target)
        delivered, early = Delivered(num_workers, max_s), TimeUp(EARLIEST * max_s)
        # A run ends where all rules of one line are done; the last of them names the end.
        self._endings: tuple[tuple[Rule, ...], ...] = (
            (Hopeless(best),),
            (TimeUp(LATEST * max_s),),
            (delivered, early, self._steady, self._precise),
            (delivered, early, self._steady, NoiseSettled()),
            (delivered, TimeUp(max_s)),
        )
        self.start()

    def start(self) -> None:
        """Forget what was seen: a run begins."""
        self.kept.clear()
        self._dropped.clear()
        self._left_out.clear()
        for rule in (self._warm_up, *self._rules):
            rule.start()

    def add(self, window: Window) -> bool:
        """Take one window; False once enough was seen."""
        if not self._warm_up.done:
            self._dropped.append(window)
            self._warm_up.add(_standing(self._dropped))
            return True
        self.kept.append(window)
        if window.is_settling and self._may_leave_out:
            self._begin_anew()
            return True
        # One window may have cut a round; and a rate of 0 is no rate: until now only what had been prefetched was
        # consumed.
        if len(self.kept) < 2 or samples_per_s(self.kept) <= 0:
            return True
        standing = _standing(self.kept)
        for rule in self._rules:
            rule.add(standing)
        return not self.done

    @property
    def num_left_out(self) -> int:
        """Windows after the warm-up that do not count, because they or a later one still settled."""
        return len(self._left_out)

    @property
    def _may_leave_out(self) -> bool:
        return len(self._left_out) < MAX_LEFT_OUT and sum(w.seconds for w in self._left_out) < self._most_left_out_s

    def _begin_anew(self) -> None:
        """What is kept stays one stretch of the run. A lock is booked where it ends, and may have begun before."""
        self._left_out += self.kept
        self.kept.clear()
        for rule in self._rules:
            rule.start()

    @property
    def done(self) -> bool:
        return self.verdict is not None

    @property
    def verdict(self) -> str | None:
        """What ended the run. None: it goes on."""
        return next((ending[-1].verdict for ending in self._endings if all(rule.done for rule in ending)), None)

    @property
    def noisy(self) -> bool:
        """What was kept is not known well enough, or still settled."""
        settled = not any(window.is_settling for window in self.kept)
        return bool(self.kept) and not (settled and self._precise.done and self._steady.done)

    @property
    def _rules(self) -> set[Rule]:
        return {rule for ending in self._endings for rule in ending}


def _standing(windows: Sequence[Window]) -> Standing:
    samples, seconds = [w.num_samples for w in windows], [w.seconds for w in windows]
    return Standing(
        num_windows=len(windows),
        num_steps=sum(w.num_steps for w in windows),
        seconds=sum(seconds),
        samples_per_s=samples_per_s(windows),
        half_width_fraction=half_width_fraction(windows),
        relative_sd=relative_sd(samples, seconds),
        halves_agree=halves_agree(samples, seconds),
    )
