"""Where each change of the code applies, by facts alone, and what it changes in the configuration."""

from dataclasses import replace
from typing import Any

import pytest
from remedy_rig import CPU, LOADER, situation

from loadtune.changes import CHANGES
from loadtune.records.config import Recipe, WorkloadSpec

BF16, FUSED = Recipe(precision="bf16"), Recipe(precision="fp16", fused_optimizer=True)

OFFERED: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("uint8_transfer", "batched_fetch")),
    *((name, {"device": CPU}) for name in ("draft_decoding", "opencv_threads")),
]

NOT_OFFERED: list[tuple[str, dict[str, Any]]] = [
    *((name, {"facts": {"input_shape": (16,)}}) for name in ("draft_decoding", "uint8_transfer")),
    *((name, {"device": CPU}) for name in ("uint8_transfer", "fused_optimizer")),
    ("uint8_transfer", {"facts": {"input_dtype": "uint8"}}),
    *(("batched_fetch", {"facts": facts}) for facts in ({"dataset_length": None}, {"fixed_batch_size": 16})),
    ("opencv_threads", {"loader": replace(LOADER, num_workers=0)}),
    ("fused_optimizer", {"recipe": BF16}),
    ("fused_optimizer", {"recipe": Recipe(precision="own"), "precisions": ("own",)}),
    ("fused_optimizer", {"recipe": FUSED}),
    *(("fused_optimizer", {"spec": WorkloadSpec(optimizer=name)}) for name in ("adamw", "pkg.mod:sgd")),
]


@pytest.mark.parametrize(("name", "given"), OFFERED)
def test_offered_with_the_same_settings(name: str, given: dict[str, Any]) -> None:
    here = situation(**given)
    assert CHANGES[name].offer(here) == here.config


@pytest.mark.parametrize(("name", "given"), NOT_OFFERED)
def test_not_offered(name: str, given: dict[str, Any]) -> None:
    assert CHANGES[name].offer(situation(**given)) is None


def test_offered_with_other_settings() -> None:
    config, fused = situation().config, CHANGES["fused_optimizer"].offer
    assert fused(situation()) == replace(config, recipe=FUSED)
    from_bf16 = situation(recipe=replace(BF16, fused_optimizer=True), precisions=("bf16", "fp16"))
    assert fused(from_bf16) == replace(config, recipe=FUSED)
