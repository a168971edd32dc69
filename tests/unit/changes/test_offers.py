"""Where each change of the code applies, by facts alone, and what it changes in the configuration."""

from dataclasses import replace
from typing import Any

import pytest
from remedy_rig import CPU, LOADER, Table, job_with, situation
from workload_rig import workload_of

from loadtune.changes import REMEDIES, in_order
from loadtune.records.config import LoaderConfig, Recipe, WorkloadSpec

OF_WORKERS = ("worker_threads", "opencv_threads")
NONE, FIVE = (replace(LOADER, num_workers=num) for num in (0, 5))
MEGABYTE = {"dataset_length": 1000, "sample_bytes": 1000}
BF16, FUSED = Recipe(precision="bf16"), Recipe(precision="fp16", fused_optimizer=True)

OFFERED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("uint8_transfer", "half_transfer", "batched_fetch", "copy_ahead")),
    *((name, {"device": CPU}) for name in ("draft_decoding", *OF_WORKERS)),
    ("cached", {"facts": MEGABYTE, "ram_bytes": 2_000_000}),
]

NOT_OFFERED: list[tuple[str, dict[str, Any]]] = [
    *((name, {"facts": {"input_shape": (16,)}}) for name in ("draft_decoding", "uint8_transfer")),
    *((name, {"device": CPU}) for name in ("uint8_transfer", "half_transfer", "copy_ahead", "fused_optimizer")),
    ("uint8_transfer", {"facts": {"input_dtype": "uint8"}}),
    ("half_transfer", {"facts": {"input_dtype": "int64"}}),
    *(("half_transfer", {"remedies": (other,)}) for other in ("uint8_transfer", "batched_fetch")),
    ("copy_ahead", {"loader": LoaderConfig(batch_size=4, num_workers=2)}),  # not pinned
    *((name, {"facts": {"dataset_length": None}}) for name in ("batched_fetch", "cached")),
    *((name, {"facts": {"fixed_batch_size": 16}}) for name in ("batched_fetch", "cached")),
    ("cached", {"facts": MEGABYTE, "ram_bytes": 1_999_999}),  # half of it is too little
    *((name, {"loader": NONE}) for name in OF_WORKERS),
    ("worker_threads", {"remedies": ("cached",)}),  # each would get a copy
    ("worker_threads", {"loader": FIVE, "num_cores": 9}),
    ("fused_optimizer", {"recipe": BF16}),
    ("fused_optimizer", {"recipe": Recipe(precision="own"), "precisions": ("own",)}),
    ("fused_optimizer", {"recipe": FUSED}),
    *(("fused_optimizer", {"spec": WorkloadSpec(optimizer=name)}) for name in ("adamw", "pkg.mod:sgd")),
]


@pytest.mark.parametrize(("name", "given"), OFFERED)
def test_offered_with_the_same_settings(name: str, given: dict[str, Any]) -> None:
    here = situation(**given)
    assert REMEDIES[name].offer(here) == here.config


@pytest.mark.parametrize(("name", "given"), NOT_OFFERED)
def test_not_offered(name: str, given: dict[str, Any]) -> None:
    assert REMEDIES[name].offer(situation(**given)) is None


def test_offered_with_other_settings() -> None:
    config, fused = situation().config, REMEDIES["fused_optimizer"].offer
    assert fused(situation()) == replace(config, recipe=FUSED)
    from_bf16 = situation(recipe=replace(BF16, fused_optimizer=True), precisions=("bf16", "fp16"))
    assert fused(from_bf16) == replace(config, recipe=FUSED)


def test_what_changes_settings_alone_leaves_the_job() -> None:
    job = workload_of(Table())
    assert job_with(job, "fused_optimizer") is job


def test_cached_samples_are_tried_only_if_asked_for() -> None:
    assert [name for name, remedy in REMEDIES.items() if remedy.only_predicted] == ["cached"]


def test_changes_are_applied_in_one_order() -> None:
    assert list(REMEDIES) == [remedy.name for remedy in REMEDIES.values()]
    assert in_order(("uint8_transfer", "draft_decoding")) == ("draft_decoding", "uint8_transfer")
    assert in_order(tuple(reversed(REMEDIES))) == tuple(REMEDIES)
