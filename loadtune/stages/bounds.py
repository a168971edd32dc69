"""After the confirmation: what the winner's loader and its way to the device do by themselves, and the verdict."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from loadtune.errors import LoadtuneError
from loadtune.probe.host_memory import host_memory_refusal, prefetch_bytes
from loadtune.records import (
    FailureKind,
    Finalist,
    HostFacts,
    LoaderConfig,
    LoaderPoint,
    TransferPoint,
    TrialFailure,
    Verdict,
    WorkloadFacts,
)
from loadtune.report.journal import Winners
from loadtune.stages.run import Run
from loadtune.study.gather import gather
from loadtune.study.verdict import judge
from loadtune.units import bytes_text, rate_text

_Point = TypeVar("_Point", LoaderPoint, TransferPoint)

POINT_SHARE = 0.003
"""Of the time budget, for the timed part of one point: 0.9 s of the default five minutes."""

ROUND_S = 0.5
"""Longest round of the workers while their loader is timed alone. A rate takes two rounds or more, after one that comes
in a burst, so longer ones would take longer than all else here; a smaller batch makes them shorter and leaves samples/s
as they are."""

HOST_BATCH_S = 0.5
"""To make a batch in the host's memory and lock its pages: a GiB at 2.3 GB/s."""


def verdict(run: Run, facts: WorkloadFacts) -> None:
    """Judge the winner by all that was measured until now: it stands where what comes after is interrupted."""
    winner = _winner(run)
    if winner is not None:
        run.found.verdict = _verdict(run, facts, winner)


def bounds(run: Run, facts: WorkloadFacts) -> None:
    """Time what bounds the winner, as far as there is time, and judge. Whatever fails here leaves a figure unknown."""
    found, winner = run.found, _winner(run)
    if winner is None:
        return
    with found.stage("bounds"):
        for loader in loaders_alone(winner):
            _time_loader(run, loader, winner)
        if found.device.kind == "cuda":
            _time_transfer(run, winner)
        found.verdict = _verdict(run, facts, winner)


def _winner(run: Run) -> Finalist | None:
    best = run.found.best
    return next((f for f in run.found.finalists if best is not None and f.config == best.config), None)


def loaders_alone(winner: Finalist) -> tuple[LoaderConfig, ...]:
    """The loaders to time: the winner's, and without the pinning thread where it has one."""
    loader = winner.config.loader
    affordable = int(ROUND_S * winner.samples_per_s / max(1, loader.num_workers))
    timed = replace(loader, batch_size=min(loader.batch_size, max(1, affordable)))
    return (timed, replace(timed, pin_memory=False)) if timed.pin_memory and timed.num_workers else (timed,)


def _time_loader(run: Run, loader: LoaderConfig, winner: Finalist) -> None:
    first_batch_s = max(each.first_batch_s for each in winner.runs)
    known = run.known(winner.config, lambda line: _with_pin(line.loader_point, loader.pin_memory))
    point = known or _asked(run, first_batch_s + 3 * ROUND_S, lambda seconds: run.bench.time_loader(loader, seconds))
    if point is not None:
        if known is None:
            run.keep(Winners(config=winner.config, loader_point=point))
        run.found.loader_points += (point,)
        pinned = "pinned" if loader.pin_memory else "not pinned"
        run.found.tell(f"the loader without training, {pinned}: {rate_text(point.samples_per_s)}")


def _with_pin(point: LoaderPoint | None, pin_memory: bool) -> LoaderPoint | None:
    return point if point is not None and point.config.pin_memory == pin_memory else None


def _time_transfer(run: Run, winner: Finalist) -> None:
    loader = winner.config.loader
    known = run.known(winner.config, lambda line: line.transfer_point)
    point = known or _asked(
        run, HOST_BATCH_S, lambda seconds: run.bench.time_transfer(loader.batch_size, seconds / 2, loader.pin_memory)
    )
    if point is not None:
        if known is None:
            run.keep(Winners(config=winner.config, transfer_point=point))
        run.found.transfer_points += (point,)
        run.found.tell(
            f"host-to-device copies alone: {rate_text(point.samples_per_s)}, {bytes_text(point.bytes_per_s)}/s"
        )


def _asked(run: Run, overhead_s: float, ask: Callable[[float], _Point | TrialFailure]) -> _Point | None:
    """The bench's answer. None: it failed, or there is no time."""
    seconds = POINT_SHARE * run.found.config.time_budget_s
    if overhead_s + seconds > run.found.left_s:
        return None
    try:
        point = ask(seconds)
    except LoadtuneError as error:  # what was confirmed stands without it
        run.found.tell(f"not measured: {error}")
        return None
    if isinstance(point, TrialFailure):
        run.found.tell(f"not measured: {point.message}")
        return None
    return point


def _verdict(run: Run, facts: WorkloadFacts, winner: Finalist) -> Verdict:
    found, loader = run.found, winner.config.loader
    share = found.best.compute_fraction if found.best else None
    tried = [trial.config for trial in found.trials if trial.measurement] + [f.config for f in found.finalists]
    return judge(
        gather(
            winner,
            facts=facts,
            host=found.host,
            device=found.device,
            compute_per_s=winner.samples_per_s / share if share else None,
            loader_points=found.loader_points,
            transfer_points=found.transfer_points,
            most_workers_tried=max(config.loader.num_workers for config in tried),
            failed_with_more_workers=_failed_with_more(run, loader),
            most_workers_in_memory=_most_workers_in_memory(run, facts, loader),
            num_memory_failures=_num_memory_failures(run, facts, loader),
            in_flight_bytes=prefetch_bytes(loader, facts.sample_bytes),
            restart_s=_restart_s(run, loader),
            compile_tried=_compile_tried(run),
        )
    )


def _failed_with_more(run: Run, loader: LoaderConfig) -> tuple[FailureKind, ...]:
    failures = (t.failure for t in run.found.trials if t.config.loader.num_workers > loader.num_workers)
    return tuple(failure.kind for failure in failures if failure is not None)


def _compile_tried(run: Run) -> bool:
    """Also where it failed, did not pay or took too long: then a note says so."""
    points = (point for choice in run.found.recipes for point in choice.points)
    return "compile" in run.found.config.tune or any(point.recipe.compile for point in points)


def _restart_s(run: Run, loader: LoaderConfig) -> float | None:
    """From an epoch's last batch to the next one's first, as it was timed."""
    cost = run.found.epoch_cost
    if cost is None:
        return None
    return cost.boundary_kept_s if loader.persistent_workers else cost.boundary_anew_s


def _most_workers_in_memory(run: Run, facts: WorkloadFacts, loader: LoaderConfig) -> int:
    """At the start, when nothing was locked for any, or now, as virtual machines grow."""
    return max(_most_workers(host, facts, loader) for host in (run.found.host, run.host_now()))


def _most_workers(host: HostFacts, facts: WorkloadFacts, loader: LoaderConfig) -> int:
    """Up to the usable cores, those whose batches of this size the host has room for."""
    fits = (
        host_memory_refusal(replace(loader, num_workers=number), facts.sample_bytes, host) is None
        for number in range(1, host.num_usable_cores + 1)
    )
    return sum(fits)


def _num_memory_failures(run: Run, facts: WorkloadFacts, loader: LoaderConfig) -> int:
    """Trials with more in flight than this loader that RAM or /dev/shm ended."""
    taken = prefetch_bytes(loader, facts.sample_bytes)
    return sum(
        trial.failure is not None
        and trial.failure.kind in ("host_oom", "shm")
        and prefetch_bytes(trial.config.loader, facts.sample_bytes) > taken
        for trial in run.found.trials
    )
