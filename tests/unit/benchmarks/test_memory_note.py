"""The memory benchmark's tables and goals, and records that go to JSON and back."""

from memory_note import goals, tables
from memory_records import Ceiling, Check, Claim, Clean, Peer, Probe, Results, Soak, Truth, from_json, to_json


def claim(hard=1680, num_ooms=1, probe_s=8.0):
    sizes = [(32, None), (160, None), (1700, "oom: CUDA out of memory"), (hard, None)]
    return Claim(
        hard=hard,
        safe=1600,
        limit="memory",
        probes=[Probe(batch_size=size, failure=failure, seconds=1.0, num_retries=2) for size, failure in sizes],
        num_probes=4,
        num_ooms=num_ooms,
        counted_s=7.9,
        bench_s=6.0,
        probe_s=probe_s,
    )


def ceiling(fits=1690, fails=1700, **changes):
    checks = [Check(batch_size=fits or 1, verdict="fits", seconds=7.0), Check(batch_size=9, verdict="oom", seconds=6.0)]
    return Ceiling(claim=claim(**changes), truth=Truth(fits=fits, fails=fails, checks=checks), seconds=60.0)


def missed(results):
    return [goal for goal, met in goals(results) if not met]


def test_shares_are_given_over_both_ends_of_the_truth():
    found = ceiling()
    assert found.lowest_share == 1680 / 1700
    assert found.highest_share == 1680 / 1690
    assert "| 0.988 to 0.994 | 4 (1) | 8.0 | 6.0 | 32, 160, 1700✗, 1680 |" in tables(
        Results(ceilings={"resnet50-fp32-sgd": found})
    )


def test_a_ceiling_near_the_truth_meets_every_goal():
    assert missed(Results(ceilings={"resnet50-fp32-sgd": ceiling()})) == []


def test_each_goal_that_is_missed_is_named():
    cell = "resnet50-fp32-sgd"
    assert len(missed(Results(ceilings={cell: ceiling(hard=1600)}))) == 1
    assert len(missed(Results(ceilings={cell: ceiling(hard=1695)}))) == 1, "above what fits"
    assert len(missed(Results(ceilings={cell: ceiling(num_ooms=2, probe_s=12.0)}))) == 2
    assert missed(Results(ceilings={cell: ceiling(fails=None)})) == [f"{cell}: measured"]


def test_only_resnet50_has_to_be_quick():
    assert missed(Results(ceilings={"vit-b16-bf16-adamw": ceiling(probe_s=30.0)})) == []


def test_an_oom_or_a_step_never_made_misses_the_soak():
    soaks = {
        "a": Soak(batch_size=8, num_steps=100, seconds=120.0),
        "b": Soak(batch_size=8, num_steps=100, seconds=60.0, oom="CUDA out of memory"),
        "c": Soak(batch_size=8, error="took more than 360 s"),
    }
    assert [goal[0] for goal in missed(Results(soaks=soaks))] == ["b", "c"]


def test_memory_that_did_not_come_back_and_a_kill_that_hit_nothing_are_missed():
    def clean(ended, at_kill, after, left=0):
        return Clean(
            ended=ended,
            used_before_bytes=500,
            used_at_kill_bytes=at_kill,
            used_after_bytes=after,
            settle_s=0.5,
            num_processes=2,
            num_left=left,
        )

    assert missed(Results(clean={"x": clean("finished", None, 500), "y": clean("bench killed", 9000, 500)})) == []
    for bad in (clean("finished", None, 501), clean("finished", None, 500, left=1), clean("bench killed", 500, 500)):
        assert len(missed(Results(clean={"x": bad}))) == 1


def test_a_peer_is_set_against_the_truth_where_that_is_known():
    peers = {"doubling": Peer(tool="doubling", found=1024, num_attempts=10, num_ooms=1, seconds=9.0, wall_s=15.0)}
    known = tables(Results(ceilings={"a": ceiling()}, peers={"a": peers}))
    assert "| a | doubling | 1024 | 0.606 | no | 10 (1) | 9.0 |" in known
    assert "| a | doubling | 1024 | – | no | 10 (1) | 9.0 |" in tables(Results(peers={"a": peers}))


def test_results_of_several_calls_add_up_and_the_newer_wins():
    older = Results(commands=["one"], ceilings={"a": ceiling(), "b": ceiling()}, peers={"a": {"x": peer(1)}})
    newer = Results(commands=["two"], ceilings={"b": ceiling(hard=1600)}, peers={"a": {"y": peer(2)}})
    newer.absorb(from_json(to_json(older)))
    assert newer.commands == ["one", "two"]
    assert newer.ceilings["a"] == ceiling()
    assert newer.ceilings["b"].claim.hard == 1600
    assert set(newer.peers["a"]) == {"x", "y"}


def peer(found):
    return Peer(tool="x", found=found, wall_s=1.0)
