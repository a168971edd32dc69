"""What is kept of a loader for the next run."""

from pathlib import Path

import pytest

from loadtune.inflight import account
from loadtune.records.loading import LoadingStep


def test_what_was_found_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = account.Account(name="Folder at train.py:31", own_workers=2, num_workers=12, kept_workers=12)
    found.steps = [LoadingStep(name="ToTensor", share=0.5, waits=None)]
    account.write_learnt(tmp_path / "0a.json", found)
    assert account.read_accounts(tmp_path / "0a.json") == [found]
    of_another = (tmp_path / "0a.json").read_text().replace('"reason"', '"cause"')
    (tmp_path / "0a.json").write_text(of_another)
    with pytest.raises(ValueError, match="or of another version: its fields are others"):
        account.read_accounts(tmp_path / "0a.json")
    assert account.read_learnt(tmp_path / "0a.json") is None


def test_a_rank_that_is_started_again_finds_what_its_machine_had_found(tmp_path: Path, monkeypatch) -> None:
    one = account.Account(name="Folder at train.py:31", own_workers=2, num_workers=12)
    monkeypatch.delenv(account.CACHE_VARIABLE, raising=False)
    assert account.learnt_file(one, str(tmp_path)) is None, "one process has nothing to take up again"
    monkeypatch.setenv("WORLD_SIZE", "2")
    file = account.learnt_file(one, str(tmp_path))
    assert file.parent == tmp_path / "found"
    assert file != account.learnt_file(one, str(tmp_path), 9), "another length is another dataset"
