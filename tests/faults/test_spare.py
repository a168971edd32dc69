"""The process that tries changes of the code beside a training: whatever the dataset does there, the training goes on,
reads nothing of it, and nothing is left.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import spare_rig
from cli_rig import segments, until

from loadtune.host.gpu import GpuBusy
from loadtune.inflight import spare as module
from loadtune.stream.shm_cleanup import is_alive


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    spare_rig.install(lambda name, module: monkeypatch.setitem(sys.modules, name, module))


def ended(spare):
    """What it found and why it ended. All its processes are gone."""
    keeper = spare._process.pid
    pids = {keeper}
    assert until(lambda: pids.update(spare_rig.below(keeper)) or spare.poll(), 60.0, pause_s=0.005)
    assert until(lambda: not any(map(is_alive, pids)), 60.0)
    assert segments(map(str, pids)) == []
    return [each.name for each in spare.found], spare.reason


@pytest.mark.parametrize(
    ("trouble", "found", "reason"),
    [
        (None, ["uint8_transfer"], None),
        ("look", ["uint8_transfer"], None),
        ("print", ["uint8_transfer"], None),
        ("raise", [], "KeyError: 'of a dataset'"),
        ("exit", [], "its process ended"),
        ("crash", [], "its process ended"),
    ],
)
def test_whatever_the_dataset_does_it_ends_and_is_silent(trouble, found, reason, capfd):
    assert ended(spare_rig.spare(trouble)) == (found, reason)
    assert capfd.readouterr() == ("", "")


def test_what_the_driver_says_of_the_gpu_comes_along(monkeypatch):
    monkeypatch.setattr(GpuBusy, "look", lambda self: 0.4)
    made = spare_rig.spare()
    assert ended(made) == (["uint8_transfer"], None)
    assert made.gpu_busy == 0.4


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_it_starts_as_the_workers_do(method, capfd):
    before = set(spare_rig.below(os.getpid()))
    made = spare_rig.spare("look", method)
    assert until(made.poll, 120.0)
    assert [each.code for each in made.found] == [spare_rig.CODE]
    assert made.reason is None
    # What stays is multiprocessing's own: server and tracker.
    assert until(lambda: len(spare_rig.below(os.getpid()) - before) <= 2, 60.0)
    assert capfd.readouterr() == ("", "")


def test_what_does_not_pickle_is_a_reason():
    made = spare_rig.spare(method="spawn", collate_fn=lambda rows: rows)
    assert until(made.poll, 60.0)
    assert "did not start" in made.reason


def test_its_time_is_limited_and_it_stops_in_every_second_slice(monkeypatch):
    monkeypatch.setattr(module, "MOST_CPU_S", 0.5)
    made, states = spare_rig.spare(indices=()), set()

    def look():
        for pid in spare_rig.below(made._process.pid):
            with suppress(OSError):  # it has ended since
                states.add(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        return made.poll()

    assert until(look, 60.0, pause_s=0.005)
    assert made.reason == "it took more than 0 s of CPU time"
    assert {"T", "R"} <= states


@pytest.mark.parametrize("is_asked", [True, False])
def test_one_that_hangs_ends_when_it_is_told_or_its_time_is_over(is_asked, monkeypatch):
    monkeypatch.setattr(module, "MOST_S", 600.0 if is_asked else 2.0)
    made = spare_rig.spare("hang")
    assert until(lambda: len(spare_rig.below(made._process.pid)) == 2, 60.0)  # with what the dataset started
    if is_asked:
        made.stop()
    assert ended(made) == ([], "its process ended")


def test_it_ends_with_the_training_that_is_killed():
    command = [sys.executable, spare_rig.__file__, "hang"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        pids = [int(each) for each in training.stdout.readline().split()]
        training.kill()
    assert len(pids) == 3
    assert until(lambda: not any(map(is_alive, pids)))
