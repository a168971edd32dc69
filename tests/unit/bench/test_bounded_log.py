"""The log keeps its beginning and its newest part, whoever goes on writing to it."""

import os
from pathlib import Path

from loadtune.bench.process import LEFT_OUT, MAX_BYTES, BoundedLog


def write(path: Path, start: int, count: int) -> None:
    with path.open("ab") as log:
        log.write(b"".join(b"line %09d\n" % number for number in range(start, start + count)))


def test_a_log_that_grows_and_grows_keeps_its_beginning_and_its_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    log = BoundedLog(path)
    for start in range(0, 1_000_000, 20_000):
        write(path, start, 20_000)
        log.cut()
        assert log.size() <= MAX_BYTES
    text = path.read_bytes()
    assert text.startswith(b"line 000000000\n")
    assert text.endswith(b"line 000999999\n")
    assert text.count(LEFT_OUT) == 1
    lines = set(map(len, text.replace(LEFT_OUT, b"").splitlines()))
    assert lines == {len(b"line 000000000")}, "whole lines alone"
    assert log.tail(1) == "line 000999999"


def test_who_appends_goes_on_at_the_end_after_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    log = BoundedLog(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    write(path, 0, 200_000)
    log.cut()
    os.write(descriptor, b"last words\n")
    os.close(descriptor)
    assert log.tail(2) == "line 000199999\nlast words"


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    write(path, 0, 100)
    before = path.read_bytes()
    BoundedLog(path).cut()
    assert path.read_bytes() == before


def test_the_tail_is_of_this_process_alone_also_after_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    write(path, 0, 78_000)
    log = BoundedLog(path)
    write(path, 500_000, 2_000)
    log.cut()
    assert log.size() < MAX_BYTES
    told = log.tail(10**6).splitlines()
    assert (told[0], told[-1], len(told)) == ("line 000500000", "line 000501999", 2_000)


def test_a_progress_bar_without_a_line_end_keeps_its_newest_part(tmp_path: Path) -> None:
    path = tmp_path / "bench.log"
    log = BoundedLog(path)
    path.write_bytes(b"\r 50%" * MAX_BYTES + b"\r 99%")
    log.cut()
    assert log.size() <= MAX_BYTES
    assert path.read_bytes().endswith(b"\r 99%")
