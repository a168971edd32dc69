"""What is tried next, over planted rates: the model proposes, what cannot run is left out."""

from dataclasses import replace

import pytest
from fakes import Surface
from study_rig import trial

from loadtune.decide import search as search_module
from loadtune.decide.search import Next, Search
from loadtune.decide.space import SearchSpace
from loadtune.model.fit import points_at
from loadtune.model.resources import Job, Points
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import Measurement, Window
from loadtune.records.result import Trial
from loadtune.records.statistics import Interval

SPACE = SearchSpace(
    batch_sizes=(32, 64, 128, 256),
    num_workers=(0, 1, 2, 4, 8),
    pin_memory=(False, True),
    recipes={"fp32": Recipe()},
    ceilings={"fp32": 256},
)
SURFACE = Surface(pinned_per_s=1e9, pageable_per_s=1000.0)
JOB = Job(
    sample_s=1 / 330,
    sample_cpu_s=1 / 330,
    sample_bytes=602_120.0,
    num_cores=8.0,
    on_gpu=True,
    compute={"fp32": tuple((float(b), 1 / SURFACE.compute_rate(Recipe(), b)) for b in SPACE.batch_sizes)},
)
BASELINE = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=2, persistent_workers=False), recipe=Recipe())


def test_a_baseline_that_cannot_run_is_not_tried() -> None:
    assert "was tried" in Search(job=JOB, space=SPACE, yours=BASELINE, feasible=lambda configs: []).next()


def test_beside_what_keeps_the_device_busy_stands_what_is_as_good_and_leaves_it_headroom() -> None:
    recipes = {"fp32": Recipe(), "bf16": Recipe(precision="bf16")}
    space = replace(SPACE, num_workers=(8,), recipes=recipes, ceilings=dict.fromkeys(recipes, 256))
    compute = {"fp32": ((256.0, 1 / 2670),), "bf16": ((256.0, 1 / 3700),)}
    search = Search(job=replace(JOB, sample_s=1 / 400, sample_cpu_s=1 / 400, compute=compute), space=space, yours=None)
    search.trials += [trial(0, 2500.0, each) for each in space.modelled() if each.batch_size == 256]
    found = {each.precision: each for each in search.ranked()}
    assert search.roomiest([found["fp32"]]).precision == "bf16"
    assert search.roomiest([*found.values()]) is None
    assert Search(job=replace(search.job, on_gpu=False), space=space, yours=None).compute_rates([*found.values()]) == {}


def test_what_is_too_long_for_the_time_left_displaces_nothing_that_could_be_tried() -> None:
    sizes = tuple(64 * step for step in range(1, 30)) + tuple(20_000 * step for step in range(1, 30))
    space = replace(
        SPACE, batch_sizes=sizes, pin_memory=(False,), num_workers=(0, *range(1, 30)), ceilings={"fp32": sizes[-1]}
    )
    step_of = tuple((float(size), 0.15 / size) for size in (64, sizes[-1]))
    job = replace(JOB, sample_s=0.006, sample_cpu_s=0.0001, on_gpu=False, compute={"fp32": step_of})
    baseline = TrialConfig(loader=LoaderConfig(batch_size=64), recipe=Recipe())
    found = Search(job=job, space=space, yours=baseline, left_s=lambda: 80.0)
    window = Window(start_s=0.0, seconds=10.0, num_steps=18, num_samples=1170, wait_s=7.3)
    slow = Measurement(windows=(window,), first_batch_s=0.4, seconds=10.0)
    found.trials.append(Trial(number=0, config=baseline, measurement=slow))
    asked, configs = found.next(), list(space.modelled())
    rates = found.model().mean(points_at([baseline, *configs], job))
    faster = [config for config, rate in zip(configs, rates[1:], strict=True) if rate > rates[0]]
    assert sum(found.lasts_s(config) > 20.0 for config in faster) > 400, "more than a proposal weighs"
    assert asked.expected > 1.0
    assert found.lasts_s(asked.config) <= 20.0


@pytest.mark.parametrize(("batch_size", "round_s"), [(None, 20.0), (BASELINE.batch_size, 30.3), (256, 46.4)])
def test_the_final_has_two_contestants_at_a_given_batch_size(batch_size: int | None, round_s: float) -> None:
    """Beside the baseline and the best, which may be one of them. Each run takes 10 s; larger batches last longer."""
    trials = [trial(number, SURFACE.training_rate(config), config) for number, config in enumerate((BASELINE, OTHER))]
    found = Search(job=JOB, space=SPACE, yours=BASELINE, trials=trials, batch_size=batch_size)
    assert found.final_s(2) == pytest.approx(2 * round_s, rel=0.02)


OTHER = SPACE.nearest(replace(BASELINE, loader=replace(BASELINE.loader, num_workers=4)))
SHORT = ""
"""Of time."""


@pytest.mark.parametrize(
    ("tried", "left_s", "expected", "decided"),
    [
        ([], 1e9, 0.5, "yours"),
        ([], 5.0, 0.5, SHORT),
        ([BASELINE], 60.0, 0.5, "trial"),
        ([BASELINE], 40.0, 0.5, "trial"),  # so that there are two to compare, if only once each
        ([BASELINE], 20.0, 0.5, SHORT),
        ([BASELINE, OTHER], 60.0, 0.5, "trial"),
        ([BASELINE, OTHER], 40.0, 0.5, SHORT),  # both are run twice again
        ([BASELINE, OTHER], 120.0, 0.02, SHORT),  # a gain of less than 3% takes nothing of three rounds of four
        ([BASELINE, OTHER], 140.0, 0.02, "trial"),
        ([BASELINE, OTHER], 140.0, 0.001, "trial"),  # no prediction has held yet
        ([BASELINE, OTHER], 140.0, -1.0, SHORT),  # all that can be tried was
    ],
)
def test_trials_go_on_until_the_time_left_is_needed_for_the_final(
    tried: list[TrialConfig], left_s: float, expected: float, decided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes 10 s."""

    def proposes(model: object, candidates: Points, tried: list[int], *more: object) -> tuple[int, Interval, float]:
        untried = [at for at in range(len(candidates)) if at not in tried]
        return (untried[0], Interval(value=1.0), expected) if untried else (0, Interval(value=1.0), -1.0)

    monkeypatch.setattr(search_module, "propose", proposes)
    trials = [trial(number, SURFACE.training_rate(config), config) for number, config in enumerate(tried)]
    asked = Search(job=JOB, space=SPACE, yours=BASELINE, left_s=lambda: left_s, trials=trials).next()
    if decided == "trial":
        assert isinstance(asked, Next)
        assert asked.config not in tried
    else:
        assert (asked.config if isinstance(asked, Next) else asked) == (BASELINE if decided == "yours" else decided)
