"""What ranks tell each other: who gets which cores, who is named, and that nobody waits."""

import json

import pytest

from loadtune.decide.inflight import Reading
from loadtune.host import usable as placement
from loadtune.inflight import readings
from loadtune.inflight.readings import Ranks, Word, cores_of, differences
from loadtune.model.workers import Work


def word(rank: int, cpu_s: float | None = None, **more: object) -> Word:
    return Word(rank=rank, cores="node 0-15", num_cores=16, cpu_s=cpu_s, **more)


@pytest.mark.parametrize(
    ("own_s", "others", "equal", "cores"),
    [(None, [], 4.0, 3.0), (None, [2.0], 8.0, 7.0), (None, [], 0.5, 0.25), (1.0, [3.0], 4.0, 1.5),
     (2.0, [1.0], 8.0, 14 * 2 / 3)],
)  # fmt: skip
def test_cores_are_shared_out_by_need_and_one_core_trains(
    own_s: float | None, others: list[float], equal: float, cores: float
) -> None:
    """Who has measured nothing needs what the others need."""
    assert cores_of(word(0, own_s), [word(1, other) for other in others], equal) == pytest.approx(cores)
    elsewhere = Word(rank=2, cores="node 16-31", num_cores=16, cpu_s=2.0)
    assert cores_of(word(0, 20.0), [word(0, 20.0), elsewhere], 16.0) == 15.0, "it has cores of its own"


def test_a_rank_that_loads_slowly_or_waits_alone_is_named() -> None:
    even = [word(rank, load_s=0.1, waiting=0.02, is_settled=True) for rank in range(3)]
    assert differences(even) == {}
    assert differences([*even, word(3, load_s=0.14, queued_s=0.07, waiting=0.3)]) == {
        3: "rank 3 loads 40% slower than the others: 140 ms a batch, 50% of that queued for a core"
    }
    assert differences([*even, word(3, load_s=0.1, waiting=0.31, is_settled=True)]) == {
        3: "rank 3 waits 31% of its time for data, the others 2%"
    }
    assert differences([*even, word(3, load_s=0.1, waiting=0.31)]) == {}, "its workers change still"
    assert differences([word(rank, load_s=0.1, waiting=0.5, is_settled=True) for rank in range(3)]) == {}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "1"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),3", "SLURM_NODEID": "1"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "?"}, 1),
    ],
)
def test_ranks_of_a_machine_by_launcher(
    environment: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert placement.num_local_ranks() == expected


class Store(dict[str, str]):
    """As torch's: asking for what nobody set would block, and raises here."""

    is_gone = False

    def set(self, key: str, value: str) -> None:
        if self.is_gone:
            raise RuntimeError("the store is gone")
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self.keys()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self[key].encode() for key in keys]


def test_figures_of_before_and_after_a_switch_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(readings, "equal_share", lambda unknown: 8.0)
    one = Ranks(Store(), 0, 2)
    one.own = word(0, 1.0)
    one.words = {1: word(1, 1.0)}
    assert one.cores() == 7.0
    one.own = word(0, 2.0, num_switches=1)  # as the other's will be, once it has switched
    assert one.cores() == 7.0
    one.words = {1: word(1, 1.5, num_switches=1)}
    assert one.cores() == 8.0


def test_a_silent_rank_is_dropped_and_a_store_that_is_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()

    def wait(timeout: float) -> None:
        if len(heard) == 7:
            other = {"rank": 1, "cores": one.own.cores, "num_cores": 2, "cpu_s": 0.5, "waiting": 0.3}
            store.set("loadtune/1", json.dumps(other))
        heard.append(dict(one.words))
        waits.append(one.peers_wait())
        store.is_gone = len(heard) > 40

    heard: list[dict[int, Word]] = []
    waits: list[bool | None] = []
    monkeypatch.setattr(readings.threading.Thread, "start", lambda thread: None)
    one = Ranks(store, 0, 2)
    monkeypatch.setattr(readings.time, "sleep", wait)
    reading = Reading(num_workers=1, num_steps=99, total_s=1.0, blocked_s=0.9, step_s=0.1)
    one.say(Work(load_s=1.5, cpu_s=1.5), reading, is_settled=True, num_switches=0)
    one._exchange()
    assert heard[14][1].cpu_s == 0.5, "the other was read once it had spoken"
    assert [waits[turn] for turn in (6, 14, -1)] == [None, True, False]
    assert heard[14][0].num_told >= 1
    assert set(heard[-1]) == {0}, "the other says nothing new"
    assert one.words, "what was known stays"


def test_ranks_that_are_not_heard_any_more_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(readings.threading.Thread, "start", lambda thread: None)
    monkeypatch.setattr(readings.time, "monotonic", lambda: now_s[0])
    said = {"cores": "", "num_cores": 2, "waiting": 0.3}
    one = Ranks(Store({f"loadtune/{rank}": json.dumps({"rank": rank} | said) for rank in (0, 1)}), 0, 2)
    one._read()
    assert one.peers_wait()
    now_s[0] = 1000.0
    assert not one.peers_wait()
