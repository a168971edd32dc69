"""What the simulations and the real runs came to, as markdown tables, and what was promised of them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from intervals_confirm import Alike
from intervals_coverage import Coverage
from intervals_real import RealComparison
from intervals_steps import StepTimes
from scipy.special import betaincinv

LEAST_HELD = 0.93
"""Of intervals of nominally 95%."""
MOST_DIFFERENT = 0.07
"""Of identical configurations called different, nominally 5%: the upper 95% confidence limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Shares told apart, one for each gain of a row."""

    row: tuple[str, ...]
    shares: tuple[float, ...]


def upper_limit(count: int, num: int) -> float:
    """One-sided 95% upper confidence limit of a share (Clopper & Pearson 1934)."""
    return 1.0 if count == num else float(betaincinv(count + 1, num - count, 0.95))


def failures(covered: Sequence[Coverage], alike: Sequence[Alike]) -> list[str]:
    """Promises that were not kept, as sentences. Empty: all were."""
    broken = [f"{_process_text(c.steps)}, {c.max_s} s: {_share(c.held)} held" for c in covered if c.held < LEAST_HELD]
    for each in alike:
        counts = {"different": each.num_different, "told apart": each.num_told_apart}
        broken += [
            f"{each.num_finalists} finalists, {each.schedule}: {_share(count / each.num)} falsely {what}"
            for what, count in counts.items()
            if upper_limit(count, each.num) > MOST_DIFFERENT
        ]
    return broken


def coverage_table(covered: Sequence[Coverage]) -> str:
    """One line a process, both lengths of run beside each other."""
    lengths = sorted({c.max_s for c in covered})
    by_steps: dict[StepTimes, dict[float, Coverage]] = {}
    for each in covered:
        by_steps.setdefault(each.steps, {})[each.max_s] = each
    parts = "held | half width | timed | ended precise"
    head = ["step times", "mean", "own noise", *(f"{s:g} s: {parts}" for s in lengths)]
    rows = [
        [_kind_text(steps), f"{steps.mean_s:g} s", _share(steps.variation, 0)]
        + [cell for s in lengths for cell in _coverage_cells(own[s])]
        for steps, own in by_steps.items()
    ]
    return table(" | ".join(head).split(" | "), rows)


def _coverage_cells(covered: Coverage) -> list[str]:
    precise = covered.verdicts["precise"] / covered.num_runs
    return [
        _share(covered.held),
        f"± {_share(covered.half_width_fraction)}",
        f"{covered.seconds:.1f} s",
        _share(precise, 0),
    ]


def _kind_text(steps: StepTimes) -> str:
    return f"stall, N = {steps.num_workers}" if steps.kind == "stall" else steps.kind


def _process_text(steps: StepTimes) -> str:
    return f"{_kind_text(steps)} of {steps.mean_s} s, noise {_share(steps.variation, 0)}"


def alike_table(alike: Sequence[Alike]) -> str:
    head = [
        "finalists",
        "runs",
        "speed-up called different",
        "upper limit",
        "without the allowance",
        "some rival called slower",
        "upper limit",
        "winner's interval holds its rate",
    ]
    rows = [
        [
            str(a.num_finalists),
            a.schedule,
            _share(a.num_different / a.num),
            _share(upper_limit(a.num_different, a.num)),
            _share(a.num_different_unallowed / a.num),
            _share(a.num_told_apart / a.num),
            _share(upper_limit(a.num_told_apart, a.num)),
            _share(a.num_rate_held / a.num),
        ]
        for a in alike
    ]
    return table(head, rows)


def given_up_table(shares: Sequence[float], rows: Sequence[tuple[StepTimes, Sequence[float]]]) -> str:
    head = ["step times", *(f"{_share(share, 0)} of the incumbent" for share in shares)]
    return table(head, [[_process_text(steps), *(_share(each) for each in given_up)] for steps, given_up in rows])


def power_table(columns: Sequence[str], gains: Sequence[float], rows: Sequence[Power]) -> str:
    head = [*columns, *(f"{_share(gain, 0)} faster" for gain in gains), "told apart 4 times of 5 from"]
    return table(head, [[*p.row, *(_share(s, 0) for s in p.shares), _from_text(p, gains)] for p in rows])


def _from_text(power: Power, gains: Sequence[float]) -> str:
    enough = [gain for gain, share in zip(gains, power.shares, strict=True) if share >= 0.8]
    return _share(min(enough), 0) if enough else "–"


def real_table(compared: Sequence[RealComparison]) -> str:
    head = ["comparison", "first", "second", "ratio with its interval", "called different", "spread between runs"]
    rows = [
        [
            str(number),
            ", ".join(f"{rate:,.0f}" for rate in c.first_per_s),
            ", ".join(f"{rate:,.0f}" for rate in c.second_per_s),
            f"{c.ratio:.3f} ({c.low:.3f} to {c.high:.3f})",
            "yes" if c.different else "no",
            _share(c.relative_sd),
        ]
        for number, c in enumerate(compared, 1)
    ]
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"
