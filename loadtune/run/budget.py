"""The time budget of a run: what is left of it, and until when each stage may last. Pure, over a clock.

Moments are of that clock, in seconds. Shares are of the whole budget, unless they are of what is left.
"""

from dataclasses import dataclass

from loadtune.records.answer import LAST_SHARE
from loadtune.seams import Clock

FINAL_SHARE = 0.23
"""For the rounds of the final: no other stage takes it away, and they take more only while throughput is known to
worse than `winner.ROUGH`. Three rounds of three contestants take about 50 s on an H200; the default is 55 s."""

SEARCH_SHARE, CODE_SHARE, LARGE = 0.2, 0.1, 0.15
"""For a search; for the one with changes of the code. An improvement that is expected to be larger than this, on the
logarithm, is worth all the time that the final can spare."""

PLAN = {"study": (SEARCH_SHARE, CODE_SHARE + FINAL_SHARE), "changes": (CODE_SHARE, FINAL_SHARE)}
PLAN |= {"verify": (0.0, FINAL_SHARE), "confirm": (FINAL_SHARE, 0.0)}
"""What each stage from the search on is planned to take, and all stages after it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """``total_s`` seconds from the moment ``began_s`` on."""

    clock: Clock
    total_s: float
    began_s: float

    @property
    def left_s(self) -> float:
        """Below 0 it is overdrawn."""
        return self.began_s + self.total_s - self.clock()

    def until(self, share: float) -> float:
        """The moment at which this share of the time now left is spent."""
        return self.clock() + share * max(0.0, self.left_s)

    @property
    def spare_s(self) -> float:
        """Seconds left beside the final and what comes after it."""
        return self.left_s - (FINAL_SHARE + LAST_SHARE) * self.total_s

    def search_until_s(self, begun_s: float, expected: float, share: float) -> float:
        """A trial of this expected improvement does not begin where it would end later, in a search of this share that
        began then. Where a workload is slow to probe, the final gives way to half of what was left."""
        left_s = self.began_s + self.total_s - begun_s
        spare_s = max(0.5 * left_s, left_s - (FINAL_SHARE + LAST_SHARE) * self.total_s)
        return begun_s + min(spare_s, (1.0 if expected >= LARGE else share) * self.total_s)

    @property
    def confirm_until_s(self) -> float:
        """No run of the final is repeated that would end later."""
        return min(self.answer_until_s, self.clock() + FINAL_SHARE * self.total_s)

    @property
    def answer_until_s(self) -> float:
        """No run of the second round of the final is made that would end later."""
        return self.until(1 - LAST_SHARE)

    def planned_s(self, stage: str, begun_s: float) -> float | None:
        """For the rest of a stage that began then, and for those after it. None: the search has not begun."""
        if stage not in PLAN:
            return None
        stage_s, later_s = (share * self.total_s for share in PLAN[stage])
        return min(max(0.0, begun_s + stage_s - self.clock()) + later_s, max(0.0, self.left_s))
