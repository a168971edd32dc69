"""Results on disk: folders never collide, files are whole, and what cannot be read says why."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest
from page_rig import GOLDEN as KEPT
from page_rig import golden

from loadtune import store
from loadtune.errors import ResultError

AT = datetime(2026, 11, 20, 17, 3, 12, tzinfo=UTC)


def keep(folder: Path, created: str) -> None:
    folder.mkdir(parents=True)
    store.write_result(dataclasses.replace(golden(), created=created), folder)


def test_runs_of_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    names = [store.new_run_folder(tmp_path, "w", AT).name for _ in range(3)]
    assert names == ["2026-11-20T17-03-12Z", "2026-11-20T17-03-12Z-2", "2026-11-20T17-03-12Z-3"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_keeps_the_old_result_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    assert store.load_result(store.write_result(golden(), tmp_path)) == golden()

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises((ResultError, KeyboardInterrupt)):
        store.write_result(dataclasses.replace(golden(), created="later"), tmp_path)
    assert store.load_result(tmp_path) == golden()
    assert len(list(tmp_path.iterdir())) == 1


def test_the_newest_run_is_found_from_every_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResultError, match="loadtune-results holds no result: it does not exist"):
        store.load_result()
    with pytest.raises(ResultError, match=r"holds no result: there is no result\.json"):
        store.load_result(tmp_path)
    out = tmp_path / "loadtune-results"
    keep(out / "a" / "2026-11-20T17-03-12Z-10", "newest")
    keep(out / "a" / "2026-11-20T17-03-12Z-2", "second")
    keep(out / "b" / "2026-11-19T23-59-59Z", "oldest, written last")
    keep(out / "b" / "renamed", "of no known time")
    (out / "a" / "2027-01-01T00-00-00Z").mkdir()  # a run that wrote no result
    assert store.load_result().created == "newest"
    assert store.load_result(out).created == "newest"
    assert store.load_result(out / "a").created == "newest"
    assert store.load_result(out / "b").created == "oldest, written last"
    assert store.load_result(out / "a" / "2026-11-20T17-03-12Z-2").created == "second"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (KEPT.read_bytes()[:2000], "is damaged"),
        (b"\xff\xfe{}", "is damaged"),
        (b"[]", "is not a result"),
        (b"{}", "schema_version"),
        (
            b'{"schema_version": 3, "unknown": []}',
            "has schema_version 3, and this loadtune reads 2 alone",
        ),
        (KEPT.read_bytes().replace(b'"schema_version": 2', b'"schema_version": 1'), "has schema_version 1, and"),
        (KEPT.read_bytes().replace(b'"num_workers": 16', b'"num_workers": "16"', 1), r"\$\.\S*num_workers"),
        (KEPT.read_bytes().replace(b'"limit": "memory"', b'"limit": "patience"', 1), r"\$\.ceilings\[\.*\d*\]\.limit"),
    ],
)
def test_a_file_that_cannot_be_used_says_where_and_what_to_do(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "result.json"
    file.write_bytes(content)
    with pytest.raises(ResultError, match=message) as caught:
        store.load_result(file)
    assert str(file) in str(caught.value)
    assert "again" in str(caught.value)
