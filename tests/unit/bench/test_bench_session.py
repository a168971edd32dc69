"""What a session keeps between two runs: page-locked blocks that the next run pins again, and no others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtune.bench.session import Session
from loadtune.records import LoaderConfig

SAMPLE_BYTES = 3 * 8 * 8 * 4


@pytest.fixture
def session() -> Any:
    """Only what `_keep_pinned_for` looks at; `freed` counts."""
    made = Session.__new__(Session)
    made.freed = 0

    def free_pinned() -> None:
        made.freed += 1

    made.memory = SimpleNamespace(free_pinned=free_pinned)
    made._samples = SimpleNamespace(batch=(torch.zeros(16, 3, 8, 8), torch.zeros(16)))
    made._pinned_bytes = 0
    return made


def run(session: Any, batch_size: int, pin_memory: bool = True) -> int:
    """How often pinned memory was given back until this run began."""
    session._keep_pinned_for(LoaderConfig(batch_size=batch_size, num_workers=2, pin_memory=pin_memory))
    return int(session.freed)


def test_blocks_are_kept_for_batches_that_go_into_them(session: Any) -> None:
    assert run(session, 256) == 1
    assert run(session, 256) == 1
    largest = (1 << (256 * SAMPLE_BYTES - 1).bit_length()) // SAMPLE_BYTES
    assert run(session, largest) == 1
    assert run(session, largest + 1) == 2


def test_blocks_are_given_back_before_a_run_that_pins_nothing(session: Any) -> None:
    run(session, 256)
    assert run(session, 256, pin_memory=False) == 2
    assert run(session, 64, pin_memory=False) == 2
