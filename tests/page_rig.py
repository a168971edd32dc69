"""Results for the report: the golden one, and others made of it; exported forms as the modules they are."""

import random
from dataclasses import replace
from pathlib import Path

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import Device
from loadtune.records.measurement import Measurement, TrialFailure, Window
from loadtune.records.result import (
    Bottleneck,
    Resource,
    ResourceLimit,
    Result,
    RooflinePoint,
    Trial,
)
from loadtune.records.statistics import Interval
from loadtune.store import load_result

GOLDEN = Path(__file__).parent / "golden" / "result.json"
NASTY = "<script>alert(1)</script>"


def golden() -> Result:
    """Everything a report can show is in it."""
    return load_result(GOLDEN)


def config(batch_size: int = 64, num_workers: int = 4, *, pinned: bool = False, **recipe: object) -> TrialConfig:
    loader = LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pinned)
    return TrialConfig(loader=loader, recipe=Recipe(**recipe))


def measurement(rate: float, **more: object) -> Measurement:
    windows = tuple(
        Window(start_s=float(second), seconds=1.0, num_steps=10, num_samples=round(rate * share), wait_s=0.2)
        for second, share in enumerate((0.99, 1.01, 1.0))
    )
    return Measurement(windows=windows, first_batch_s=0.5, seconds=4.0, **more)


def measured(number: int, rate: float, settings: TrialConfig) -> Trial:
    found = measurement(rate, peak_allocated_bytes=settings.batch_size * 50_000_000)
    return Trial(number=number, config=settings, measurement=found, predicted=Interval(value=rate))


def with_trials(count: int) -> Result:
    """The golden result with other trials: a tenth failed; speed comes from the workers alone."""
    chance = random.Random(0)
    trials = []
    for number in range(count):
        settings = config(
            chance.choice((16, 32, 64, 128, 256)),
            chance.choice((0, 1, 2, 4, 8, 16)),
            pinned=chance.random() < 0.5,
            precision=chance.choice(("fp32", "fp16", "bf16")),
        )
        if count > 1 and chance.random() < 0.1:
            oom = TrialFailure(kind="oom", phase="training", message=f"out of memory {NASTY}")
            trials.append(Trial(number=number, config=settings, failure=oom))
        else:
            rate = 100.0 * (1 + settings.loader.num_workers) * chance.uniform(0.98, 1.02)
            trials.append(measured(number, rate, settings))
    return replace(golden(), trials=tuple(trials))


def about(value: float, half: float = 0.08) -> Interval:
    return Interval(value=value, low=value * (1 - half), high=value * (1 + half))


def explained(**more: object) -> Result:
    """The golden result, its winner limited by pinning: 450 samples/s a worker, 4,200 pinned, 6,000 on the GPU.

    Without changes of the code.
    """
    best = golden().best.config
    roof = []
    for number in (0, 1, 2, 4, 6, 8, 12, 16, 20):
        limits: dict[Resource, float] = {"main": 430.0} if number == 0 else {"workers": 450.0 * number}
        if number:
            limits |= {"cores": 6400.0 - 20 * number, "pinning": 4200.0, "main": 16000.0, "device": 6000.0}
        rate = about(0.96 * min(limits.values()), 0.12 - 0.005 * number)
        roof.append(RooflinePoint(num_workers=number, samples_per_s=rate, limits=limits))
    found = Bottleneck(
        config=best,
        num_predicted=5,
        num_missed=1,
        explained=0.94,
        holds=True,
        limits=(
            ResourceLimit(resource="pinning", samples_per_s=about(4200), probability=0.86, shares={"copying": 1.0}),
            ResourceLimit(resource="device", samples_per_s=about(6000), probability=0.14, shares={"computing": 1.0}),
        ),
        predicted={"half_the_loading": about(5250 / 4050)},
        roofline=tuple(roof),
    )
    return replace(golden(), bottleneck=replace(found, **more), remedies=None)


def named(name: str, result: Result) -> Result:
    """The same of a dataset with this name."""
    workload = replace(result.config.workload, dataset=name)
    return replace(result, config=replace(result.config, workload=workload), notes=(name,))


def cut_short() -> Result:
    """Interrupted before anything was measured."""
    return replace(
        golden(), cut_short="interrupted by Ctrl-C", trials=(), finalists=(), ceilings=(), compute_points=(),
        best=None, best_at_your_batch=None, bottleneck=None, facts=None, yours=None,
    )  # fmt: skip


def on_cpu(spec=None, *, fused=False, optimizer="sgd", **facts):
    """The kept result, as if a CPU had this winner."""
    kept = golden()
    recipe = Recipe(fused_optimizer=fused)
    config = TrialConfig(loader=LoaderConfig(batch_size=8, prefetch_factor=3), recipe=recipe)
    return replace(
        kept,
        device=Device(kind="cpu", name="cpu"),
        config=replace(kept.config, workload=spec or replace(kept.config.workload, optimizer=optimizer)),
        facts=replace(kept.facts, **facts),
        best=replace(kept.best, config=config),
    )


def of_script(command: str, **facts: object) -> Result:
    """The golden result, as if this command had been tuned: with the plain recipe of each precision."""

    def plain(found):
        return replace(found, config=replace(found.config, recipe=Recipe(precision=found.config.precision)))

    kept = golden()
    known = {"own_loader": kept.yours.loader, "loader_place": "train.py:33", "own_precision": "fp32"} | facts
    return replace(
        kept,
        config=replace(kept.config, workload=replace(kept.config.workload, command=tuple(command.split()))),
        facts=replace(kept.facts, **known),
        finalists=tuple(map(plain, kept.finalists[:-1])),
        best=plain(kept.best), best_at_your_batch=plain(kept.best_at_your_batch), remedies=None, assumed=(),
    )  # fmt: skip
