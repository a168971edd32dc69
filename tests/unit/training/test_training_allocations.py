"""PyTorch's memory history as numbered requests; entries are those of `torch.cuda.memory._snapshot`."""

from typing import Any

from loadtune.training.allocator_log import compact_events


def alloc(addr: int, size: int) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "stream": 0}


def free(addr: int, action: str = "free_completed") -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": 1, "stream": 0}


def test_a_block_is_given_back_when_that_is_completed_and_segments_are_no_requests() -> None:
    history = [
        {"action": "segment_alloc", "addr": 0x10, "size": 2 << 20, "stream": 0},
        alloc(0x10, 512),
        free(0x10, "free_requested"),
        alloc(0x20, 600),
        free(0x10),
        {"action": "segment_free", "addr": 0x10, "size": 2 << 20, "stream": 0},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
    ]
    assert compact_events(history, []) == ((512, 600, -1), ())


def test_marks_are_places_in_the_history_and_become_places_in_the_events() -> None:
    history = [free(0x90), alloc(0x10, 512), free(0x10, "free_requested"), free(0x10), alloc(0x20, 600)]
    events, starts = compact_events(history, [0, 1, 2, 4])
    assert events == (512, -1, 600)
    assert starts == (0, 0, 1, 2)
