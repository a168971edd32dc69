"""What trainings found and is kept in a folder is shown as a table, and what cannot be read is left out."""

from pathlib import Path

from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.inflight import learnt
from loadtune.inflight.account import Account


def test_a_folder_of_what_was_found_is_a_table(tmp_path: Path) -> None:
    found = Account(name="Folder at train.py:31", own_workers=2, num_workers=12, load_s=0.21, cpu_s=0.2)
    found.first_samples_per_s, found.samples_per_s = 700.0, 3_100.0
    learnt.write(tmp_path / "0a.json", found)
    (tmp_path / "torn.json").write_text('{"schema_version": 1')
    (tmp_path / "other.json").write_text("[]")
    shown = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    row = shown.output.splitlines()[-1]
    for cell in ("Folder at train.py:31", "2 → 12", "3,100 (4.4×)", "210 ms, 95% CPU"):
        assert cell in row
    assert len([line for line in shown.output.splitlines() if line.strip()]) == 2
