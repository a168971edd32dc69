"""The throughput model against surfaces whose limits are known."""

from dataclasses import replace

import numpy as np
import pytest

from loadtune.model.answers import change, explain, propose
from loadtune.model.fit import SEGMENT, ThroughputModel
from loadtune.model.resources import POINT, PRIORS, Job, Points, demands, prior_of

JOB = Job(
    sample_s=3e-3,
    sample_cpu_s=3e-3,
    sample_bytes=602_120.0,
    num_cores=16.0,
    on_gpu=True,
    compute={
        "fp32": ((16, 1 / 900), (64, 1 / 2700), (256, 1 / 3100), (1024, 1 / 3250)),
        "bf16": ((16, 1 / 900), (64, 1 / 2800), (256, 1 / 4700), (1024, 1 / 5000)),
    },
)
SPACE = [
    (batch, workers, pinned, recipe)
    for batch in (16, 32, 64, 128, 256, 384, 512)
    for workers in (0, 1, 2, 4, 8, 12, 16)
    for pinned in (False, True)
    for recipe in (0, 1)
]
NAMES = [*PRIORS, *(f"compute {recipe}" for recipe in JOB.compute)]
BASELINE = SPACE.index((64, 0, False, 0))


def points_of(settings: list[tuple[int, int, bool, int]]) -> Points:
    return np.array([(*each, 0) for each in settings], POINT)


class Machine:
    """Measures settings of a job whose parameters are planted. Rates are off by up to ``bend`` from setting to setting
    in a way that no resource explains."""

    def __init__(self, seed: int = 0, bend: float = 0.05, **planted: float) -> None:
        self.chance = np.random.default_rng(seed)
        self.theta, _ = prior_of(JOB)
        for name, value in planted.items():
            self.theta[NAMES.index(name)] = np.log(value)
        points = points_of(SPACE)
        waves = np.sin(np.log2(points["batch_size"]) + seed) * np.cos(points["num_workers"] / 5 + seed)
        self.found = demands(self.theta, JOB, points)
        self.rates = np.exp(bend * waves) / self.found.seconds

    def measure(self, index: int) -> tuple[float, float, float]:
        noise = np.exp(self.chance.normal(0, [0.03, 0.05, 0.05]))
        make = self.found.make[index] * noise[1] if SPACE[index][1] else np.nan
        return self.rates[index] * noise[0], make, self.found.device[index] * noise[2]


def fitted(seen: list[tuple[int, tuple[float, float, float]]]) -> ThroughputModel:
    rows = [(*SPACE[index], 0, *measured, np.nan, np.nan) for index, measured in seen]
    return ThroughputModel(JOB, np.array(rows, SEGMENT))


def searched(machine: Machine) -> ThroughputModel:
    """The model after a search of six trials."""
    index, seen = BASELINE, list[tuple[int, tuple[float, float, float]]]()
    for _ in range(6):
        seen.append((index, machine.measure(index)))
        model = fitted(seen)
        index, _, _ = propose(model, points_of(SPACE), sorted({at for at, _ in seen}))
    return model


@pytest.mark.parametrize(
    ("planted", "setting", "resource", "part"),
    [
        ({"pin_rate": 1e9}, (256, 16, True, 1), "pinning", "copying"),
        ({"unpinned_rate": 5e8}, (256, 16, False, 1), "device", "copying"),
        ({"load": 4.0}, (256, 8, True, 1), "workers", "loading"),
        ({"load": 4.0}, (256, 0, True, 1), "main", "loading"),
        ({"pin_rate": 2e10, "load": 0.3, "compute bf16": 1.5}, (256, 16, True, 1), "device", "computing"),
        ({"launch": 0.03}, (16, 16, True, 1), "main", "launching"),
    ],
)
def test_a_planted_limit_is_named(planted, setting, resource, part):
    machine = Machine(**planted)
    seen = [BASELINE, SPACE.index(setting), *(SPACE.index((64, workers, setting[2], 1)) for workers in (4, 16))]
    model = fitted([(index, machine.measure(index)) for index in seen])
    _, (first, *others), _ = explain(model, points_of([setting]), 1.0, points_of([]))
    assert first.resource == resource
    assert max(first.shares, key=first.shares.__getitem__) == part
    assert sum(first.shares.values()) == pytest.approx(1.0)
    assert first.probability > 0.5
    truth = 1 / machine.found.by_resource[resource][SPACE.index(setting)]
    assert first.samples_per_s.low / 1.05 < truth < first.samples_per_s.high * 1.05
    assert sum(limit.probability for limit in (first, *others)) == pytest.approx(1.0)


def test_intervals_hold_what_was_not_seen():
    """Over surfaces with parameters drawn from the priors."""
    inside = []
    for seed in range(5):
        mean, sd = prior_of(JOB)
        drawn = np.exp(np.random.default_rng(seed).normal(mean, sd))
        machine = Machine(seed, **dict(zip(NAMES, drawn, strict=True)))
        found = searched(machine).predict(points_of(SPACE))
        inside.append(np.mean(np.abs(found.mean - np.log(machine.rates)) <= 1.96 * found.sd))
    assert np.mean(inside) >= 0.9


def test_a_smaller_sample_lifts_a_limit_of_bytes():
    machine = Machine(pin_rate=1.2e9, bend=0.0)
    best = (256, 16, True, 1)
    model = fitted([(SPACE.index(each), machine.measure(SPACE.index(each))) for each in [best, (256, 8, True, 1)]])
    smaller = replace(JOB, sample_bytes=JOB.sample_bytes / 4)
    gain, expected = change(model, points_of([best]), points_of([best]), smaller)
    before, after = (demands(machine.theta, job, points_of([best])).seconds[0] for job in (JOB, smaller))
    assert gain.low < before / after < gain.high
    assert gain.value == pytest.approx(before / after, rel=0.25)
    assert gain.value <= expected
    fewer, least = change(model, points_of([best]), points_of([(256, 2, True, 1)]), JOB)
    assert fewer.high < 1.0 <= least < 1.001


def test_a_setting_that_cannot_compute_faster_promises_nothing_however_unsure_it_is() -> None:
    machine, best, small = Machine(), SPACE.index((64, 4, True, 1)), SPACE.index((16, 16, True, 0))
    rate, make, device = machine.measure(best)
    model = fitted([(best, (1.6 * rate, make, device))])
    points = points_of([SPACE[best], SPACE[small]])
    assert propose(model, points, [0])[2] > 1e-4
    assert propose(model, points, [0], at_most=model.most(points))[2] < 1e-6
