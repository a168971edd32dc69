"""What is said of a training at its end. What is kept in a folder is a table; what cannot be read is left out."""

from pathlib import Path

from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.inflight import account


def test_a_folder_of_what_was_found_is_a_table(tmp_path: Path) -> None:
    found = account.Account(name="Folder at train.py:31", own_workers=2, num_workers=12)
    found.first_samples_per_s, found.samples_per_s = 700.0, 3_100.0
    account.write_learnt(tmp_path / "0a.json", found)
    (tmp_path / "torn.json").write_text('{"schema_version": 1')
    (tmp_path / "other.json").write_text("[]")
    shown = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    row = shown.output.splitlines()[-1]
    for cell in ("Folder at train.py:31", "2 → 12", "3,100 samples/s (4.4×)"):
        assert cell in row
    assert len([line for line in shown.output.splitlines() if line.strip()]) == 2


def test_a_rank_that_is_started_again_finds_what_its_machine_had_found(tmp_path: Path, monkeypatch) -> None:
    one = account.Account(name="Folder at train.py:31", own_workers=2, num_workers=12)
    monkeypatch.delenv(account.CACHE_VARIABLE, raising=False)
    assert account.learnt_file(one, str(tmp_path)) is None, "one process has nothing to take up again"
    monkeypatch.setenv("WORLD_SIZE", "2")
    file = account.learnt_file(one, str(tmp_path))
    assert file is not None
    assert file.parent == tmp_path / "found"
    assert file != account.learnt_file(one, str(tmp_path), 9), "another length is another dataset"


def test_the_seconds_of_whole_epochs_come_first_and_there_is_a_number_to_keep_or_to_try() -> None:
    found = account.Account(name="Folder at train.py:31", own_workers=4, num_workers=16, batch_size=256)
    found.first_samples_per_s, found.samples_per_s, found.state = 640.0, 2_200.0, "resting"
    found.num_batches, found.total_s, found.earlier_total_s = 300, 70.0, 40.0
    found.blocked_s, found.earlier_blocked_s, found.first_blocked_fraction = 31.5, 27.0, 0.675
    found.switches = [{"epoch": 0, "batch": 90, "num_workers": 16}]
    assert account.summary([found]) == [
        "Folder at train.py:31: 4 → 16 workers: 640 → 2,200 samples/s (3.4×)",
        "  to keep it: DataLoader(..., num_workers=16)",
        "  waits for data: 68% → 15% of the time",
    ]
    found.num_epochs, found.epochs_s, found.epoch_batches, found.first_begin_s, found.begins_s = 2, 30.0, 100, 5.0, 3.0
    change, _, waits = account.summary([found])
    assert change.endswith(": 15 s an epoch instead of about 45 s (3×)"), "256 × 100 ÷ 640 s, and their start"
    assert waits == "  waits for data: 30 s → 2.2 s in an epoch, 1.5 s of it at the start"
    found.first_epoch_s = 48.0
    assert account.summary([found])[0].endswith(": 15 s an epoch instead of 48 s (3.2×)")
    found.state = "judging"
    to_try = "  to try it: DataLoader(..., num_workers=16); the script ended before 16 were compared with 4"
    assert account.summary([found])[1] == to_try
    found.switches.append({"epoch": 1, "batch": 40, "num_workers": 21})
    found.num_workers = 21
    to_keep = "  to keep it: DataLoader(..., num_workers=16); the script ended before 21 were compared with 16"
    assert account.summary([found]) == ["Folder at train.py:31: 4 → 16 workers", to_keep]


def test_loaders_with_too_few_batches_share_a_line_that_says_how_many_are_needed() -> None:
    found = [account.Account(name=f"Folder at train.py:{line}", own_workers=2, num_workers=2) for line in (40, 60)]
    found[0].num_batches, found[0].epoch_batches, found[0].total_s = 15, 5, 3.0
    found[1].num_batches, found[1].total_s, found[1].reason = 30, 6.0, "a stream stays as it is"
    both = "Folder at train.py:40 (5 an epoch; 21 are needed), Folder at train.py:60 (30; 31 are needed)"
    assert account.summary(found) == [f"too few batches to tell: {both}"]


def test_rates_are_those_of_all_ranks_and_a_loop_that_still_waits_gets_the_reason() -> None:
    ranks = [account.Account(name="Folder at train.py:31", own_workers=1, num_workers=6, rank=rank) for rank in (0, 1)]
    for each in ranks:
        each.first_samples_per_s, each.samples_per_s, each.state = 100.0, 300.0, "resting"
        each.blocked_s, each.total_s, each.bottleneck = 6.0, 10.0, "workers"
    change, _, waits, _ = account.summary(ranks)
    assert change.endswith(": 1 → 6 workers: 200 → 600 samples/s of 2 ranks (3×)")
    assert waits.endswith(": 60% of the time: no more workers were found to pay off")
