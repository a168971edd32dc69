"""What was found, as markdown. Pure over `Results`."""

from memory_note import markdown_row, markdown_table
from peers_records import Answer, Results, Timing, Tuned
from peers_tools import OURS, TOOLS

DRIFTED = 0.05
"""Beyond it the halves of a timing differ by more than windows of a second do on a quiet machine."""

HEAD = (
    "tool | batch | workers | pinned | precision | recipe | samples/s, same loop | of ours | it claims | tuning s "
    "(search) | remark"
)
TIMING_HEAD = (
    "tool | round | samples/s | batches | lengths of the queue | s | first half ÷ second | reserved GiB | remark"
)


def tables(results: Results) -> str:
    ranked = sorted(results.tuned, key=lambda tool: results.rate(tool) or 0.0, reverse=True)
    parts = [
        markdown_table("What each leaves a user with", HEAD, [tool_row(results, tool) for tool in ranked]),
        markdown_table("Each timing", TIMING_HEAD, _timing_rows(results, ranked)),
    ]
    if results.failed:
        failed = [markdown_row([job, why]) for job, why in results.failed.items()]
        parts.append(markdown_table("Not measured", "job | why", failed))
    return "\n\n".join(parts)


def tool_row(results: Results, tool: str) -> str:
    tuned = results.tuned[tool]
    answer, title = tuned.answer, TOOLS[tool].title
    if answer is None:
        return markdown_row([title, *[None] * 8, seconds_text(tuned), tuned.error])
    claimed = None if tuned.claimed_per_s is None else f"{tuned.claimed_per_s:,.0f}"
    return markdown_row([
        title,
        answer.batch_size,
        answer.num_workers,
        "yes" if answer.pin_memory else "no",
        answer.precision,
        recipe_text(answer),
        rate_text(results.rates(tool)),
        share_text(results, tool),
        claimed,
        seconds_text(tuned),
        tuned.remark,
    ])  # fmt: skip


def rate_text(rates: list[float]) -> str | None:
    if not rates:
        return None
    mean = f"{sum(rates) / len(rates):,.0f}"
    return mean if len(rates) == 1 else f"{mean} ({min(rates):,.0f} to {max(rates):,.0f})"


def share_text(results: Results, tool: str) -> str | None:
    ours = results.rate(OURS) if OURS in results.tuned else None
    rate = results.rate(tool)
    return None if ours is None or rate is None else f"{rate / ours:.2f}"


def seconds_text(tuned: Tuned) -> str:
    search = "" if tuned.search_s is None else f" ({tuned.search_s:.0f})"
    return f"{tuned.wall_s:.0f}{search}"


def recipe_text(answer: Answer) -> str:
    chosen = {
        "channels_last": answer.channels_last,
        "fused optimizer": answer.fused,
        "compiled": answer.compile,
        "uint8 images": answer.uint8,
        "non-blocking copies": answer.non_blocking,
        "persistent workers": answer.persistent_workers,
        f"prefetch {answer.prefetch_factor}": answer.prefetch_factor not in (None, 2),
        "batches out of order": not answer.in_order,
        f"{answer.num_threads} threads": answer.num_threads is not None,
    }
    return ", ".join(name for name, is_chosen in chosen.items() if is_chosen) or "as PyTorch has it"


def _timing_rows(results: Results, ranked: list[str]) -> list[str]:
    rows, seen = [], set()
    for tool in ranked:
        answer = results.tuned[tool].answer
        if answer is not None and answer.key not in seen:
            seen.add(answer.key)
            timings = results.timings.get(answer.key, [])
            rows += [timing_row(TOOLS[tool].title, number, timing) for number, timing in enumerate(timings, 1)]
    return rows


def timing_row(title: str, number: int, timing: Timing) -> str:
    if timing.samples_per_s is None:
        return markdown_row([title, number, *[None] * 3, f"{timing.seconds:.0f}", None, None, timing.error])
    reserved = timing.peak_reserved_bytes
    drifted = timing.drift is not None and abs(timing.drift - 1) > DRIFTED
    return markdown_row([
        title,
        number,
        f"{timing.samples_per_s:,.0f}",
        timing.num_batches,
        None if timing.num_queues is None else f"{timing.num_queues:.1f}",
        f"{timing.seconds:.1f}",
        None if timing.drift is None else f"{timing.drift:.2f}",
        None if reserved is None else f"{reserved / 2**30:.1f}",
        "not steady" if drifted else "",
    ])  # fmt: skip
