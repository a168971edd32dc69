"""The process from outside: what it is told and says, its log, and its temporary folder."""

import os
import tempfile
import threading
from multiprocessing import Pipe
from pathlib import Path

import pytest

from loadtune.records.measurement import Window
from loadtune.training.process import LEFT_OUT, MAX_BYTES, STOP, BoundedLog, Line, make_scratch


def write(path: Path, start: int, count: int) -> None:
    with path.open("ab") as log:
        log.write(b"".join(b"line %09d\n" % number for number in range(start, start + count)))


def test_a_log_that_grows_and_grows_keeps_its_newest_lines_and_who_appends_goes_on_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "training.log"
    log = BoundedLog(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for start in range(0, 300_000, 20_000):
        write(path, start, 20_000)
        log.cut()
        assert log.size() <= MAX_BYTES
    os.write(descriptor, b"last words\n")
    os.close(descriptor)
    text = path.read_bytes()
    assert text.startswith(LEFT_OUT)
    assert text.count(LEFT_OUT) == 1
    lines = set(map(len, text.replace(LEFT_OUT, b"").splitlines()[:-1]))
    assert lines == {len(b"line 000000000")}, "whole lines alone"
    assert log.tail(2) == "line 000299999\nlast words"


def test_the_tail_is_of_this_process_alone_also_after_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "training.log"
    write(path, 0, 78_000)
    log = BoundedLog(path)
    write(path, 500_000, 2_000)
    log.cut()
    assert log.size() < MAX_BYTES
    told = log.tail(10**6).splitlines()
    assert (told[0], told[-1], len(told)) == ("line 000500000", "line 000501999", 2_000)


def test_a_worker_can_open_its_socket_whatever_the_length_of_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with make_scratch() as folder:
        assert len(os.fsencode(Path(folder) / "pymp-abcdefgh" / "listener-abcdefgh")) <= 107


def test_the_line_says_what_is_done_and_hears_a_stop() -> None:
    controller, training = Pipe()
    line = Line(training)
    line.enter("training")
    line.pulse()  # too soon after the phase to be said
    assert controller.recv() == "training"
    assert not controller.poll(0)
    controller.send(STOP)
    line = Line(training)
    assert line.stop_asked()
    assert not line.stop_asked()


@pytest.mark.parametrize(("seconds", "hears"), [(100.0, True), (0.4, False)])
def test_after_a_long_step_the_line_waits_a_moment_for_the_answer(seconds: float, hears: bool) -> None:
    """Else the step that begins meanwhile is in vain. After a short one it does not wait."""
    controller, training = Pipe()
    line = Line(training)
    line.window(Window(start_s=0.0, seconds=seconds, num_steps=1, num_samples=1))
    answer = threading.Timer(0.05, controller.send, [STOP])
    answer.start()
    assert line.stop_asked() is hears
    answer.join()
