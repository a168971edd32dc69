"""Which precision the first trials are run in, where the fastest one may be overtaken."""

from loadtune.records import ComputePoint, Recipe, TrialConfig
from loadtune.study.optuna_study import OptunaStudy
from loadtune.study.seeds import Seed, seed_configs
from loadtune.study.space import SearchSpace, batch_ladder, worker_ladder
from loadtune.testing import FakeBench

FP16, BF16 = Recipe(precision="fp16"), Recipe(precision="bf16", fused_optimizer=True)
SPACE = SearchSpace(
    batch_sizes=batch_ladder(16, 1024),
    num_workers=worker_ladder(16),
    pin_memory=(False, True),
    recipes={"fp16": FP16, "bf16": BF16},
    ceilings={"fp16": 1024, "bf16": 192},
)


def seeds() -> list[Seed]:
    fastest = FakeBench(noise=0.0).time_compute(FP16, 256, 1.0)
    assert isinstance(fastest, ComputePoint)
    return seed_configs(SPACE, None, fastest, sample_s=1 / 1000, unhindered="bf16")


def asked(rates: dict[str, float]) -> list[TrialConfig]:
    """What a study asks for until its seeds are through; it is told these rates of the precisions."""
    first = seeds()
    study = OptunaStudy(SPACE, first, None, seed=0)
    configs = []
    for _ in first:
        trial = study.ask()
        study.tell_measured(trial, rates[trial.config.precision])
        configs += [trial.config] if trial.origin == "seed" else []
    return configs


def test_a_precision_that_waits_for_nothing_is_tried_in_the_same_corner() -> None:
    corner, other, *around = seeds()
    assert (corner.config.precision, other.config.precision) == ("fp16", "bf16")
    assert (corner.config.batch_size, other.config.batch_size) == (256, 192), "its ceiling"
    assert other.config.loader.num_workers == corner.config.loader.num_workers
    assert not corner.follows
    assert not other.follows
    assert all(seed.follows for seed in around)


def test_what_follows_is_tried_in_the_precision_that_was_faster() -> None:
    slower, faster = asked({"fp16": 3000.0, "bf16": 2900.0}), asked({"fp16": 3000.0, "bf16": 4000.0})
    assert [config.precision for config in slower] == ["fp16", "bf16", "fp16", "fp16", "fp16"]
    assert [config.precision for config in faster] == ["fp16", "bf16", "bf16", "bf16", "bf16"]
    assert [config.precision for config in asked({"fp16": 3000.0, "bf16": 3100.0})] == [
        "fp16",
        "bf16",
        "fp16",
        "fp16",
        "fp16",
    ], "by chance"
    assert [config.loader.num_workers for config in slower[2:4]] == [
        config.loader.num_workers for config in faster[2:4]
    ]
    assert all(config.batch_size <= 192 for config in faster[1:])


def test_only_a_scaler_beside_an_optimizer_that_is_not_fused_waits() -> None:
    waiting = (FP16, BF16, Recipe(), Recipe(precision="fp16", fused_optimizer=True))
    assert [recipe.waits_each_step for recipe in waiting] == [True, False, False, False]
