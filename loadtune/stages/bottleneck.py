"""After the confirmation: what limits the winner, by the throughput model, fitted to all that was measured."""

from loadtune.records import Finalist, Measurement, TrialConfig, WorkloadFacts
from loadtune.stages.run import Run
from loadtune.stages.searching import search_of
from loadtune.study.bottleneck import Known, bottleneck
from loadtune.study.space import SearchSpace

BEYOND = 2
"""How many times as many workers as were tried the roofline shows."""


def name_bottleneck(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Nothing is run for it. Without a winner, or with one in a precision that was not searched, nothing is named."""
    found = run.found
    winner = next((f for f in found.finalists if found.best is not None and f.config == found.best.config), None)
    known = None if winner is None else known_of(run, facts, searched, winner)
    if winner is not None and known is not None:
        found.bottleneck = bottleneck(known, winner)


def known_of(run: Run, facts: WorkloadFacts, searched: SearchSpace, winner: Finalist) -> Known | None:
    """What the run measured, as the model takes it. None: the winner's precision was not searched."""
    found = run.found
    if winner.config.precision not in searched.recipes:
        return None
    search = search_of(run, facts, searched)
    runs = [(finalist.config, measured) for finalist in found.finalists for measured in finalist.runs]
    tried = [(trial.config, trial.measurement) for trial in found.trials if trial.measurement is not None]
    measured: list[tuple[TrialConfig, Measurement]] = [
        (config, each)
        for config, each in (*tried, *runs)
        if config.precision in searched.recipes and (search.is_modelled(config) or config == winner.config)
    ]
    return Known(
        job=search.job,
        measured=measured,
        trials=found.trials,
        num_workers=_numbers(searched, winner.config.loader.num_workers),
        objective=found.config.objective,
    )


def _numbers(searched: SearchSpace, own: int) -> list[int]:
    top = max(searched.num_workers)
    return sorted({*searched.num_workers, own, round(top * BEYOND**0.5), top * BEYOND} if top else {0, own})
