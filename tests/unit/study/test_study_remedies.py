"""What a remedy is predicted to gain: with which settings, and after what another one before it was measured to do."""

import math
import random
from dataclasses import replace

import numpy as np
from remedy_rig import situation
from study_rig import measured

from loadtune.model.answers import change
from loadtune.model.fit import Segments, ThroughputModel, points_of
from loadtune.model.resources import Job
from loadtune.records import Estimate, Examined, LoaderConfig, Loading, Measurement, Ratio, Recipe, TrialConfig
from loadtune.remedies import REMEDIES
from loadtune.stages.remedies import LOOKS
from loadtune.study.remedies import WORTH_TRYING, gain_of, is_promising, is_worth_keeping, offer
from loadtune.study.throughput import points_at

BF16 = Recipe(precision="bf16")
JOB = Job(
    sample_s=4e-3,
    sample_cpu_s=4e-3,
    sample_bytes=600_000.0,
    num_cores=16.0,
    on_gpu=True,
    compute={"bf16": ((64.0, 2.4e-4), (256.0, 2.1e-4)), "fp16": ((64.0, 2.0e-4), (256.0, 1.7e-4))},
    syncing=frozenset({"fp16"}),
)
BEFORE = Loading(sample_s=4e-3, sample_cpu_s=4e-3, sample_bytes=600_000.0)
LIGHT = Examined(name="batched_fetch", before=BEFORE, after=replace(BEFORE, sample_s=2e-4, sample_cpu_s=2e-4))
UINT8 = Examined(name="uint8_transfer", before=BEFORE, after=replace(BEFORE, sample_bytes=150_000.0))


def config(batch_size: int = 256, num_workers: int = 16, recipe: Recipe = BF16, **more: object) -> TrialConfig:
    loader = LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=True)
    return TrialConfig(loader=loader, recipe=recipe, **more)  # type: ignore[arg-type]


def fitted(
    job: Job, rate: float, make_s: float, device_s: float = np.nan, before: ThroughputModel | None = None
) -> ThroughputModel:
    """Three segments of the best configuration: 256 a batch, 16 workers, pinned, bf16."""
    here = points_of([(256, 16, True, 0)] * 3)
    nan = np.full(3, np.nan)
    segments = Segments(here, np.full(3, rate), np.full(3, make_s), np.full(3, device_s), nan, np.ones(3))
    return ThroughputModel(job, segments, before)


def test_a_remedy_is_tried_with_the_batch_size_that_is_best_with_it() -> None:
    """While workers limit, all batch sizes are alike; with light samples the launches of small batches do."""
    at = replace(situation(), config=config(16))
    job = replace(JOB, compute={"bf16": ((16.0, 6e-4), (256.0, 1e-4))}, syncing=frozenset())
    model = fitted(job, 3000.0, 4.5e-3)
    found = offer(REMEDIES["batched_fetch"], LIGHT, at, model, job, [config(16), config(128), config(256)])
    assert found is not None
    assert found.config.batch_size > 16
    assert found.config.remedies == ("batched_fetch",)
    alone = offer(REMEDIES["batched_fetch"], LIGHT, at, model, job, [config(16)])
    assert alone is not None
    assert found.predicted is not None
    assert alone.predicted is not None
    assert found.predicted.value > 1.03 * alone.predicted.value


def test_other_settings_keep_what_a_remedy_before_changed() -> None:
    kept = config(16, recipe=replace(BF16, compile=True), remedies=("compiled",))
    job = replace(JOB, compute={"bf16": ((16.0, 6e-4), (256.0, 1e-4))}, syncing=frozenset())
    at = replace(situation(), config=kept)
    found = offer(REMEDIES["batched_fetch"], LIGHT, at, fitted(job, 3000.0, 4.5e-3), job, [config(256)])
    assert found is not None
    assert (found.config.batch_size, found.config.recipe.compile) == (256, True)


def test_nothing_pinned_is_given_up_once_copies_go_ahead() -> None:
    at = replace(situation(), config=config(16, remedies=("copy_ahead",)))
    job = replace(JOB, compute={"bf16": ((16.0, 6e-4), (256.0, 1e-4))}, syncing=frozenset())
    unpinned = replace(config(256), loader=LoaderConfig(batch_size=256, num_workers=16))
    found = offer(REMEDIES["batched_fetch"], LIGHT, at, fitted(job, 3000.0, 4.5e-3), job, [unpinned])
    assert found is not None
    assert found.config.loader == at.config.loader


def test_what_runs_with_a_remedy_showed_is_known_of_the_next_one() -> None:
    """Workers limited, so that a faster step was worth nothing. With bytes the device does, at 95% of its rate."""
    plain = config()
    at = replace(situation(precisions=("bf16", "fp16")), config=plain)
    fused, seen = REMEDIES["fused_optimizer"], Examined(name="fused_optimizer")
    model = fitted(JOB, 2700.0, 5.5e-3, 2.7e-4)
    before = offer(fused, seen, at, model, JOB, [])
    assert before is not None
    assert before.config.precision == "fp16"
    assert before.predicted is not None
    uint8 = offer(REMEDIES["uint8_transfer"], UINT8, at, model, JOB, [])
    assert uint8 is not None
    assert uint8.job is not None
    after = fitted(uint8.job, 4400.0, 2.2e-3, 2.2e-4, before=model)
    on_top = offer(fused, seen, replace(at, config=replace(plain, remedies=("uint8_transfer",))), after, uint8.job, [])
    assert on_top is not None
    assert on_top.predicted is not None
    assert before.predicted.value < WORTH_TRYING < on_top.predicted.value
    assert before.expected_gain < on_top.expected_gain


def test_what_can_hardly_gain_is_not_worth_a_try_however_much_it_may_lose() -> None:
    """At 98% of the compute-only rate: the long lower tail of a prediction is no chance to gain."""
    job = replace(JOB, syncing=frozenset())
    model = fitted(job, 0.98 / 2.1e-4, 3.0e-3, 2.1e-4)
    found = offer(
        REMEDIES["more_workers"],
        Examined(name="more_workers"),
        replace(situation(most_workers=16), config=config()),
        model,
        job,
        [],
    )
    assert found is not None
    assert found.predicted is not None
    assert found.predicted.high - 1 < 0.5 * (1 - found.predicted.low)
    assert 1.0 <= found.expected_gain < WORTH_TRYING


def test_a_gain_is_promising_by_its_runs_and_the_model_together() -> None:
    unsure, predicted = Ratio(ratio=1.1, low=0.95, high=1.27), Estimate(value=1.3, low=1.1, high=1.5)
    assert is_promising(unsure, predicted)
    assert not is_promising(unsure, None)
    assert not is_promising(unsure, Estimate(value=1.0, low=0.85, high=1.15))
    assert not is_promising(Ratio(ratio=1.0, low=0.9, high=1.1), predicted), "its runs show none"
    assert is_promising(Ratio(ratio=1.1, low=1.02, high=1.2), None)
    assert not is_promising(Ratio(ratio=1.3), None)


def runs(*rates: float) -> list[Measurement]:
    return [measured(rate) for rate in rates]


def test_what_slows_both_runs_of_a_pair_does_not_widen_the_gain() -> None:
    together = runs(1000.0, 800.0, 1200.0), runs(1300.0, 1050.0, 1540.0)
    shuffled = runs(1200.0, 1000.0, 800.0), runs(1300.0, 1050.0, 1540.0)
    widths = []
    for pair in (together, shuffled):
        gain = gain_of(pair, [], runs(1000.0, 990.0, 1010.0), "samples-per-s")
        assert gain.low is not None
        widths.append(gain.ratio / gain.low)
    assert widths[0] < 1.05 < 1.3 < widths[1]


def test_a_change_that_brings_nothing_is_seldom_a_gain_however_often_one_looks() -> None:
    """Of 1,000, with six runs of the best configuration, 6% between runs, and up to nine rounds."""
    source, wrong = random.Random(0), 0
    for _ in range(1000):
        draw = lambda number: runs(*(1000.0 * math.exp(source.gauss(0.0, 0.06)) for _ in range(number)))  # noqa: E731
        winner, before, after = draw(6), draw(9), draw(9)
        gains = (gain_of((before[:n], after[:n]), [], winner, "samples-per-s", LOOKS) for n in range(2, 10))
        wrong += any(is_worth_keeping(gain) for gain in gains)
    assert wrong <= 25


def test_no_gain_goes_beyond_the_steps_alone() -> None:
    """Several resources were near a tie and did not slow each other down. That is no reason to outrun the GPU."""
    job = replace(JOB, sample_s=3.5e-3, sample_cpu_s=3.5e-3)
    model = fitted(job, 4400.0, 3.8e-3)
    light = replace(job, sample_s=1e-3, sample_cpu_s=1e-3, sample_bytes=150_000.0)
    rate, gain, _ = change(model, points_at([config()], job), job=light)
    alone = 1 / 2.1e-4
    assert rate.value <= alone * (1 + 1e-9)
    assert gain.value < 1.02 * alone / 4400.0
