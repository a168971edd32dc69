"""Two results of one workload set side by side. In: two `TuningResult`s. Out: a `Comparison`. Pure.

It refuses what cannot be compared, says what makes a comparison doubtful, and claims no difference that the runs of
both sides do not show.
"""

from loadtune.errors import ResultError
from loadtune.records import (
    PRECISIONS,
    Change,
    Comparison,
    Precision,
    PrecisionChange,
    SameConfig,
    Side,
    TrialConfig,
    TuningResult,
    Value,
    Winner,
)
from loadtune.records.chosen import finalist_of, was_confirmed_whole
from loadtune.study.changes import machine_changes, setting_changes, step_changes, workload_changes
from loadtune.study.ratio import Runs, compute_ratio, confirmed_runs, ratio_of


def compare(before: TuningResult, after: TuningResult, *, keep_batch_size: bool = False) -> Comparison:
    """What changed. ``keep_batch_size`` compares the winners at the users' batch sizes.

    Raises ResultError where the two trained different things.
    """
    if found := step_changes(before, after):
        raise ResultError(
            f"The two results are not of one workload ({_listed(found)}). Throughput of different training steps cannot"
            " be compared. Name two results of the same dataset, model, image size, classes and optimizer."
        )
    old, new = (_winner(result, keep_batch_size) for result in (before, after))
    changes = (*machine_changes(before.host, before.device, after.host, after.device), *workload_changes(before, after))
    runs = [None if w is None else _runs(r, w.config) for r, w in ((before, old), (after, new))]
    return Comparison(
        workload=before.config.workload.title,
        before=_side(before, old),
        after=_side(after, new),
        ratio=ratio_of(runs[0], runs[1]) if runs[0] and runs[1] else None,
        changes=changes,
        settings=setting_changes(old.config, new.config) if old and new else (),
        precisions=tuple(_precision(name, before, after) for name in PRECISIONS if _known(name, before, after)),
        same_configs=_same_configs(before, after, [w.config for w in (old, new) if w]),
        notes=(
            *_without_winner("first", before, old),
            *_without_winner("second", after, new),
            *_doubts(changes),
            *_objectives(before, after),
        ),
    )


def _winner(result: TuningResult, keep_batch_size: bool) -> Winner | None:
    return result.best_at_your_batch if keep_batch_size else result.best


def _side(result: TuningResult, winner: Winner | None) -> Side:
    finalist = None if winner is None else finalist_of(result, winner.config)
    found = result.bottleneck if winner is not None and winner == result.best else None
    return Side(
        created=result.created,
        loadtune_version=result.loadtune_version,
        hostname=result.host.hostname,
        device=result.device.name,
        cut_short=result.cut_short,
        config=None if winner is None else winner.config,
        num_runs=None if finalist is None else len(finalist.runs),
        samples_per_s=None if winner is None else winner.samples_per_s,
        half_width_fraction=None if winner is None else winner.half_width_fraction,
        compute_fraction=None if winner is None else winner.compute_fraction,
        wait_fraction=None if finalist is None else finalist.wait_fraction,
        bottleneck=found.limits[0].resource if found is not None and found.holds else None,
    )


def _runs(result: TuningResult, config: TrialConfig) -> Runs | None:
    finalist = finalist_of(result, config)
    return None if finalist is None else confirmed_runs(finalist, result.finalists)


def _same_configs(before: TuningResult, after: TuningResult, winners: list[TrialConfig]) -> tuple[SameConfig, ...]:
    common = []
    for config in dict.fromkeys([*winners, *(f.config for f in before.finalists)]):
        old, new = _runs(before, config), _runs(after, config)
        if old is not None and new is not None:
            common.append(SameConfig(config=config, ratio=ratio_of(old, new)))
    return tuple(common)


def _known(precision: Precision, *results: TuningResult) -> bool:
    return any(result.compute_only(precision) or _safe_batch(result, precision) for result in results)


def _precision(precision: Precision, before: TuningResult, after: TuningResult) -> PrecisionChange:
    old, new = before.compute_only(precision), after.compute_only(precision)
    return PrecisionChange(
        precision=precision,
        compute_before_per_s=None if old is None else old.samples_per_s,
        compute_after_per_s=None if new is None else new.samples_per_s,
        compute_ratio=compute_ratio(old, new) if old and new else None,
        safe_batch_before=_safe_batch(before, precision),
        safe_batch_after=_safe_batch(after, precision),
    )


def _safe_batch(result: TuningResult, precision: Precision) -> int | None:
    return next((c.safe_batch_size for c in result.ceilings if c.precision == precision), None)


def _without_winner(which: str, result: TuningResult, winner: Winner | None) -> tuple[str, ...]:
    if winner is not None and was_confirmed_whole(result):
        return ()
    why = f" was cut short: {result.cut_short.rstrip('.')}" if result.cut_short else " went to its end"
    if winner is not None:
        return (f"The {which} run{why}. Fewer runs stand behind its figures than planned.",)
    if result.best is not None:
        return (f"The {which} run was given no batch size to keep, so it has no winner at one.",)
    return (f"The {which} run{why}. It has no confirmed winner, so no throughput of it is compared.",)


def _doubts(changes: tuple[Change, ...]) -> tuple[str, ...]:
    if length := next((change for change in changes if change.name == "dataset_length"), None):
        return (
            f"The dataset had {length.before} samples and then {length.after}: the same name stands for other data, and"
            " samples of another size or another decoding would explain a difference too.",
        )
    return ()


def _objectives(before: TuningResult, after: TuningResult) -> tuple[str, ...]:
    old, new = before.config.objective, after.config.objective
    if old == new == "samples-per-s":
        return ()
    return (
        f"The first run looked for {old}, the second for {new}. What is compared is throughput: a winner by samples "
        "per joule need not be the fastest.",
    )


def _listed(changes: tuple[Change, ...]) -> str:
    return "; ".join(f"{change.name}: {_given(change.before)} and {_given(change.after)}" for change in changes)


def _given(value: Value) -> Value:
    """An option that was left out is None."""
    return "not given" if value is None else value
