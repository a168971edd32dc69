"""What was found, as markdown tables, and which goals it meets. Pure over `Results`."""

from collections.abc import Iterable

from memory_bracket import is_narrow
from memory_records import GIB, Ceiling, Clean, Peer, Results, Soak, Truth

LOWEST, HIGHEST = 0.97, 1.00
MAX_PROBES, MAX_OOMS = 5, 1
RESNET_S = 10.0
_NONE = "–"


def tables(results: Results) -> str:
    """Every part that was run, one table each."""
    truths = {cell: ceiling.truth for cell, ceiling in results.ceilings.items()}
    parts = [
        ("Ceilings", _CEILING_HEAD, [_ceiling_row(cell, c) for cell, c in results.ceilings.items()]),
        (
            "With memory held by another process",
            _CEILING_HEAD,
            [_ceiling_row(key, c) for key, c in results.held.items()],
        ),
        (
            "Other tools",
            "cell | tool | found | of the truth | trained there | attempts (OOMs) | s | remark",
            [
                _peer_row(cell, peer, truth.fits if truth else None)
                for cell, peers in results.peers.items()
                for truth in [truths.get(cell)]
                for peer in peers.values()
            ],
        ),
        (
            "Training at the safe ceiling",
            "cell | batch (partial) | steps, evaluations | s | step s | OOMs | retries (second half) | reserved GiB",
            [_soak_row(cell, soak) for cell, soak in results.soaks.items()],
        ),
        (
            "What is left behind",
            "cell, how it ended | used before | at the kill | after | bytes more | back within s | processes (left)",
            [_clean_row(key, clean) for key, clean in results.clean.items()],
        ),
        ("Not measured", "job | why", [markdown_row([job, why]) for job, why in results.failed.items()]),
    ]
    return "\n\n".join(markdown_table(*part) for part in parts if part[2])


_CEILING_HEAD = (
    "cell | hard | safe | truth: fits, fails | hard ÷ truth | probes (OOMs) | probe s | bench s | sizes tried | "
    "retries at hard (steady) | processes"
)


def markdown_table(title: str, head: str, rows: Iterable[str]) -> str:
    rule = "|" + "---|" * (head.count("|") + 1)
    return "\n".join([f"## {title}", "", f"| {head} |", rule, *rows])


def markdown_row(values: Iterable[object]) -> str:
    return "| " + " | ".join(_NONE if value is None else str(value).replace("|", "/") for value in values) + " |"


def _ceiling_row(cell: str, found: Ceiling) -> str:
    claim, truth = found.claim, found.truth
    bracket = None if truth is None else f"{truth.fits or _NONE}, {truth.fails or _NONE}"
    checks = None if truth is None else _checks_text(truth)
    if claim is None:
        return markdown_row([cell, found.error, None, bracket, None, None, None, None, None, None, checks])
    at_hard = next((p for p in claim.probes if p.batch_size == claim.hard and p.failure is None), None)
    return markdown_row([
        cell,
        claim.hard,
        claim.safe,
        bracket,
        share_text(found),
        f"{claim.num_probes} ({claim.num_ooms})",
        f"{claim.probe_s:.1f}",
        f"{claim.bench_s:.1f}",
        ", ".join(f"{p.batch_size}{'' if p.failure is None else '✗'}" for p in claim.probes),
        at_hard and f"{at_hard.num_retries} ({at_hard.num_steady_retries})",
        checks,
    ])  # fmt: skip


def _checks_text(truth: Truth) -> str:
    broken = next((f"; {check.message}" for check in truth.checks if check.verdict == "error"), "")
    return "known" if truth.from_earlier else f"{len(truth.checks)}{broken}"


def share_text(found: Ceiling) -> str:
    """Both ends of hard ÷ truth; the truth is at least what fits and below what fails."""
    low, high = found.lowest_share, found.highest_share
    return f"{_NONE if low is None else f'{low:.3f}'} to {_NONE if high is None else f'{high:.3f}'}"


def _peer_row(cell: str, peer: Peer, fits: int | None) -> str:
    if peer.error is not None:
        return markdown_row([cell, peer.tool, None, None, None, None, f"{peer.wall_s:.0f}", peer.error])
    share = f"{peer.found / fits:.3f}" if peer.found is not None and fits else None
    attempts = f"{peer.num_attempts} ({peer.num_ooms})"
    seconds = None if peer.seconds is None else f"{peer.seconds:.1f}"
    ran = "yes" if peer.was_run else "no"
    return markdown_row([cell, peer.tool, peer.found, share, ran, attempts, seconds, peer.remark])


def _soak_row(cell: str, soak: Soak) -> str:
    size = f"{soak.batch_size} ({soak.partial_batch_size})"
    if soak.num_steps is None:
        return markdown_row([cell, size, None, None, None, soak.oom or soak.error, None, None])
    reserved = None if soak.peak_reserved_bytes is None else f"{soak.peak_reserved_bytes / GIB:.1f}"
    return markdown_row([
        cell,
        size,
        f"{soak.num_steps}, {soak.num_evaluations}",
        None if soak.seconds is None else f"{soak.seconds:.0f}",
        None if soak.step_s is None else f"{soak.step_s:.3f}",
        f"1: {soak.oom}" if soak.oom else 0,
        f"{soak.num_retries} ({soak.num_late_retries})",
        reserved,
    ])  # fmt: skip


def _clean_row(key: str, clean: Clean) -> str:
    before, after = clean.used_before_bytes, clean.used_after_bytes
    sizes = [None if b is None else f"{b / GIB:.3f} GiB" for b in (before, clean.used_at_kill_bytes, after)]
    more = None if before is None or after is None else after - before
    return markdown_row([key, *sizes, more, f"{clean.settle_s:.1f}", f"{clean.num_processes} ({clean.num_left})"])


def goals(results: Results) -> list[tuple[str, bool]]:
    """Every goal that what was measured can speak to, and whether it is met."""
    found: list[tuple[str, bool]] = []
    for cell, ceiling in (results.ceilings | results.held).items():
        found += _ceiling_goals(cell, ceiling)
    for cell, soak in results.soaks.items():
        ended = soak.error is None and soak.oom is None and bool(soak.num_steps)
        found.append((f"{cell}: trains at {soak.batch_size} for {soak.seconds or 0:.0f} s without an OOM", ended))
    for key, clean in results.clean.items():
        same = clean.used_before_bytes == clean.used_after_bytes and clean.num_left == 0
        # What was in use at the kill tells whether it hit a probe at all.
        hit = clean.ended == "finished" or (clean.used_at_kill_bytes or 1) > (clean.used_before_bytes or 0)
        found.append((f"{key}: memory as before, no process left", same and hit))
    return found + [(f"{job}: measured", False) for job in results.failed]


def _ceiling_goals(cell: str, found: Ceiling) -> list[tuple[str, bool]]:
    claim, truth = found.claim, found.truth
    if claim is None or truth is None or truth.fits is None or truth.fails is None:
        return [(f"{cell}: measured", False)]
    low, high = found.lowest_share or 0.0, found.highest_share or 0.0
    met = [
        (f"{cell}: truth known to 1%", is_narrow(truth.fits, truth.fails)),
        (f"{cell}: hard ÷ truth {share_text(found)} within {LOWEST:.2f} to {HIGHEST:.2f}", low >= LOWEST and high <= 1),
        (f"{cell}: {claim.num_probes} probes of {MAX_PROBES}", claim.num_probes <= MAX_PROBES),
        (f"{cell}: {claim.num_ooms} OOMs of {MAX_OOMS}", claim.num_ooms <= MAX_OOMS),
    ]
    if cell.startswith("resnet50"):
        met.append((f"{cell}: {claim.probe_s:.1f} s of {RESNET_S:.0f} s", claim.probe_s <= RESNET_S))
    return met
