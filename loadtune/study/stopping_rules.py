"""One reason each to go on with a timed run or to end it. Tiny objects over plain numbers; no clock, no windows.

`start` forgets what was seen, `add` is told how the run stands after each further window, `done` answers, and
`verdict` is the word for a run that ended by it. `StoppingRule` puts them together.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from loadtune.records.intervals import MERGEABLE

HOPELESS = 0.8
"""A run whose interval lies wholly below this share of the best so far cannot win, whatever the next second brings:
fresh loaders of one configuration were seen 6 to 7% apart on an H200, and this is three times that."""

MIN_WINDOWS = 3
"""Windows that every run is given: below, an interval says next to nothing."""

MIN_ROUNDS = 2
"""Times every worker should have delivered: within a round, batches come in bursts that say nothing of the rate (on an
H200, 16 workers with batches of 1024 read 1,077/s over three quarters of a round, and 3,000/s over several)."""

PATIENCE = 1.5
"""Times the allowed seconds for which a run waits for the end of a round."""

SETTLED_LOOKS, SETTLED_BAND = 8, 0.1
"""The spread of the windows has settled once it stayed within a tenth over this many looks. A further window moves it
by about 1 ÷ its number, so this takes some twenty windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands: plain numbers over all windows seen so far."""

    num_windows: int = 1
    num_steps: int = 1
    seconds: float = 1.0
    samples_per_s: float = 1.0
    half_width_fraction: float | None = None
    """Of the 95% interval of the rate. None: too few windows."""
    relative_sd: float | None = None
    """Spread of the windows' rates. None: too few windows."""
    halves_agree: bool = False
    """The rates of the older and the newer half of the windows agree within their interval."""


class Rule(Protocol):
    """One reason."""

    verdict: ClassVar[str]
    done: bool

    def start(self) -> None: ...
    def add(self, standing: Standing) -> None: ...


@dataclass(slots=True, eq=False)
class _Rule:
    """Not done until a standing says so."""

    done: bool = field(default=False, init=False)

    def start(self) -> None:
        self.done = False


@dataclass(slots=True, eq=False)
class WarmUp(_Rule):
    """Done after one round of the workers, or where the rest of it would eat half of the time allowed; and not before
    as much time has passed as a batch takes a worker, all that is allowed at the most.

    Workers that had filled the queue have nothing in the making when training begins. Until they have as much of it as
    the steps ask for, they seem to make less than those train on.
    """

    verdict: ClassVar[str] = "warm"
    num_workers: int
    max_s: float
    batch_s: float = 0.0

    def start(self) -> None:
        self.done = self.num_workers == 0

    def add(self, standing: Standing) -> None:
        left = self.num_workers - standing.num_steps
        round_over = left <= 0 or left * standing.seconds / standing.num_steps > self.max_s / 2
        self.done = round_over and standing.seconds >= min(self.batch_s, self.max_s)


@dataclass(slots=True, eq=False)
class Delivered(_Rule):
    """Done once every worker was heard often enough, at the end of a round where that is worth waiting for."""

    verdict: ClassVar[str] = "delivered"
    num_workers: int
    max_s: float

    def add(self, standing: Standing) -> None:
        # Workers start together, so their first batches come in a burst: a round is when each has delivered once.
        per_round = max(1, self.num_workers)
        whole = standing.num_steps % per_round == 0 or standing.seconds >= PATIENCE * self.max_s
        enough = standing.num_windows >= MIN_WINDOWS and standing.num_steps >= MIN_ROUNDS * per_round
        self.done = enough and whole


@dataclass(slots=True, eq=False)
class TimeUp(_Rule):
    """Done after so many seconds."""

    verdict: ClassVar[str] = "time up"
    max_s: float

    def add(self, standing: Standing) -> None:
        self.done = standing.seconds >= self.max_s


@dataclass(slots=True, eq=False)
class Steady(_Rule):
    """Done while the two halves of the windows agree."""

    verdict: ClassVar[str] = "steady"

    def add(self, standing: Standing) -> None:
        self.done = standing.halves_agree


@dataclass(slots=True, eq=False)
class Precise(_Rule):
    """Done while the interval is as narrow as asked, and of enough windows to be believed.

    Stopping at the first narrow interval prefers those that are narrow by luck: from four windows on, 91.5% of the
    plain 95% intervals hold the truth of independent steps. So it takes as many as are merged as well.
    """

    verdict: ClassVar[str] = "precise"
    target: float

    def add(self, standing: Standing) -> None:
        width = standing.half_width_fraction
        self.done = standing.num_windows >= MERGEABLE and width is not None and width <= self.target


@dataclass(slots=True, eq=False)
class NoiseSettled(_Rule):
    """Done once the spread of the windows is known: more of them narrow the interval by their root alone."""

    verdict: ClassVar[str] = "noise settled"
    _spreads: deque[float] = field(default_factory=lambda: deque(maxlen=SETTLED_LOOKS), init=False)

    def start(self) -> None:
        self.done = False
        self._spreads.clear()

    def add(self, standing: Standing) -> None:
        if standing.relative_sd is None:
            return
        self._spreads.append(standing.relative_sd)
        full = len(self._spreads) == SETTLED_LOOKS
        self.done = full and max(self._spreads) <= (1 + SETTLED_BAND) * min(self._spreads)


@dataclass(slots=True, eq=False)
class Hopeless(_Rule):
    """Done where the interval lies clearly below the incumbent."""

    verdict: ClassVar[str] = "hopeless"
    best: float | None
    """Samples/s of the incumbent. None: there is none, or every run counts."""

    def add(self, standing: Standing) -> None:
        width = standing.half_width_fraction
        if self.best is None or width is None or standing.num_windows < MIN_WINDOWS:
            return
        self.done = standing.samples_per_s * (1 + width) < HOPELESS * self.best
