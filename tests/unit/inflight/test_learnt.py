"""What is kept in a folder of a loader is a table; what cannot be read is left out."""

from pathlib import Path

from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.inflight import account, files
from loadtune.records.loading import LoadingStep


def test_a_folder_of_what_was_found_is_a_table(tmp_path: Path) -> None:
    found = account.Account(name="Folder at train.py:31", own_workers=2, num_workers=12, kept_workers=12)
    found.samples_per_s, found.gain, found.gain_low, found.gain_high = 2_200.0, 3.4, 3.1, 3.8
    found.steps = [LoadingStep(name="ToTensor", share=0.5, waits=None)]
    files.write_learnt(tmp_path / "0a.json", found)
    assert files.read(tmp_path / "0a.json") == [found]
    (tmp_path / "torn.json").write_text('{"schema_version": 1')
    (tmp_path / "other.json").write_text("[]")
    shown = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    row = shown.output.splitlines()[-1]
    for cell in ("Folder at train.py:31", "2 → 12", "2,200 samples/s (3.40×, 3.10 to 3.80)"):
        assert cell in row
    assert len([line for line in shown.output.splitlines() if line.strip()]) == 2


def test_a_rank_that_is_started_again_finds_what_its_machine_had_found(tmp_path: Path, monkeypatch) -> None:
    one = account.Account(name="Folder at train.py:31", own_workers=2, num_workers=12)
    monkeypatch.delenv(files.CACHE_VARIABLE, raising=False)
    assert files.learnt_file(one, str(tmp_path)) is None, "one process has nothing to take up again"
    monkeypatch.setenv("WORLD_SIZE", "2")
    file = files.learnt_file(one, str(tmp_path))
    assert file is not None
    assert file.parent == tmp_path / "found"
    assert file != files.learnt_file(one, str(tmp_path), 9), "another length is another dataset"
