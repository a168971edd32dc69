"""The comparison with other tools: what each answer means, how it is timed, and the table."""

from dataclasses import replace

import msgspec
import pytest
import torch
from cells import SMOKE_FAKE, small_fake_images
from peers import Results, tables
from peers_child import Answer, Script, Timing, send_bytes, timing
from peers_tools import Tuned, answer_of

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig

PLAIN = Answer(batch_size=64)
LARGE = Answer(batch_size=1683, num_workers=16)


def test_our_winner_becomes_the_arguments_that_its_code_has_with_the_changes_that_the_loop_can_make():
    loader = LoaderConfig(batch_size=128, num_workers=8, pin_memory=True, prefetch_factor=4)
    winner = TrialConfig(loader=loader, recipe=Recipe(precision="fp16", memory_format="channels_last"))
    answer = answer_of(winner)
    assert answer.loader_kwargs() == loader.kwargs()
    assert (answer.precision, answer.channels_last, answer.fused, answer.non_blocking) == ("fp16", True, False, True)
    assert answer.num_prefetched == loader.num_prefetched
    changed = answer_of(replace(winner, remedies=("uint8_transfer", "fused_optimizer")))
    assert changed == msgspec.structs.replace(answer, uint8=True)
    with pytest.raises(ValueError, match=r"cannot make these changes: batched_fetch$"):
        answer_of(replace(winner, remedies=("batched_fetch", "uint8_transfer")))


def test_bytes_are_made_floats_on_the_device_as_the_dataset_makes_them():
    images = small_fake_images()
    plain = images[3][0]
    script = Script(SMOKE_FAKE, Answer(batch_size=1, uint8=True), torch.device("cpu"))
    seen = []
    script.model = lambda inputs: seen.append(inputs) or torch.zeros(1, 5, requires_grad=True)
    send_bytes(images)
    sent = images[3][0]
    assert sent.dtype == torch.uint8
    script.step(sent[None], torch.tensor([1]))
    assert torch.equal(seen[0][0], plain)


def test_a_timing_is_samples_over_wall_seconds_and_tells_a_queue_that_ran_down():
    ends = [0.0, 1.0, 2.0, 4.0, 6.0]
    found = timing(ends, Answer(batch_size=10, num_workers=1))
    assert found.samples_per_s == pytest.approx(40 / 6)
    assert (found.num_batches, found.num_queues, found.drift) == (4, 2.0, 2.0)


def test_the_fastest_stands_first_whoever_it_is():
    tuned = {"ours": Tuned(answer=LARGE), "defaults": Tuned(answer=PLAIN)}
    tuned["lightning"] = Tuned(wall_s=300.0, error="took more than 300 s")
    found = Results(host={"GPU": "one"}, tuned=tuned)
    found.timings = {
        LARGE.key: [Timing(samples_per_s=100.0), Timing(samples_per_s=300.0)],
        PLAIN.key: [Timing(samples_per_s=400.0, drift=1.2)],
    }
    rows = [line.split(" | ") for line in tables(found).splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[1:4]] == [
        "| PyTorch's defaults, batch 64",
        "| loadtune run",
        "| Lightning's finder and its worker advice",
    ]
    assert [row[6:8] for row in rows[1:3]] == [["400", "2.00"], ["200 (100 to 300)", "1.00"]]
    assert rows[3][-1] == "took more than 300 s |"
    assert "not steady" in tables(found)
