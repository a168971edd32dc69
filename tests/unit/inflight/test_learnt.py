"""What is said of a training at its end. What is kept in a folder is a table; what cannot be read is left out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.inflight import account, files, words


def test_a_folder_of_what_was_found_is_a_table(tmp_path: Path) -> None:
    found = kept(own_workers=2, num_workers=12, kept_workers=12)
    files.write_learnt(tmp_path / "0a.json", found)
    (tmp_path / "torn.json").write_text('{"schema_version": 1')
    (tmp_path / "other.json").write_text("[]")
    shown = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    row = shown.output.splitlines()[-1]
    for cell in ("Folder at train.py:31", "2 → 12", "2,200 samples/s (3.4×, 3.1 to 3.8)"):
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


def kept(**other) -> account.Account:
    """A loader whose 4 workers became 16, with a gain that was measured."""
    found = account.Account(name="Folder at train.py:31", own_workers=4, num_workers=16, kept_workers=16)
    found.first_samples_per_s, found.samples_per_s, found.state = 640.0, 2_200.0, "resting"
    found.total_s, found.earlier_total_s = 70.0, 40.0
    found.blocked_s, found.earlier_blocked_s, found.first_blocked_fraction = 31.5, 27.0, 0.675
    found.gain, found.gain_low, found.gain_high = 3.4, 3.1, 3.8
    for name, value in other.items():
        setattr(found, name, value)
    return found


FOUND = "Folder at train.py:31: 4 → 16 workers: "
RATES = f"{FOUND}647 → 2,200 samples/s (3.4×, 3.1 to 3.8)"
FASTER = f"{FOUND}3.4 times as fast (3.1 to 3.8)"
ONCE = f"{FOUND}not proven: 3.4× (measured once before and once after)"
KEEP = "  to keep it: DataLoader(..., num_workers=16)"
ENDED = "; the script ended before"
WAITS = "  waits for data: 68% → 15% of the time"
EPOCH = "15 s an epoch instead of 48 s (3.2×, 2.6 to 3.9)"
EPOCHS = {"first_epochs_s": [48.0, 48.0]}


@pytest.mark.parametrize(
    ("other", "lines"),
    [
        ({}, [RATES, KEEP, WAITS]),
        ({"gain_low": 0.9}, [f"{FOUND}not proven: 3.4× (0.9 to 3.8)", WAITS]),
        ({"gain_low": None}, [ONCE, WAITS]),
        ({"gain": None}, [FOUND.removesuffix(": "), WAITS]),
        (EPOCHS | {"epochs_s": [15.0]}, [RATES, KEEP, WAITS]),
        (
            EPOCHS | {"epochs_s": [15.0, 15.0]},
            [f"{FOUND}{EPOCH}", KEEP, WAITS],
        ),
        ({"state": "judging", "num_workers": 21}, [FASTER, f"{KEEP}{ENDED} 21 were compared with 16"]),
        (
            {"state": "judging", "kept_workers": None},
            [f"Folder at train.py:31: tried 16 workers instead of 4{ENDED} 16 were compared with 4", WAITS],
        ),
        ({"state": "comparing", "num_workers": 4, "gain_low": None}, [ONCE]),
    ],
)
def test_a_gain_is_told_with_its_interval_and_kept_where_that_excludes_1(other, lines) -> None:
    assert words.summary([kept(**other)]) == lines


def test_loaders_with_too_few_batches_share_a_line_that_says_how_many_are_needed() -> None:
    found = [account.Account(name=f"Folder at train.py:{line}", own_workers=2, num_workers=2) for line in (40, 60)]
    found[0].num_batches, found[0].epoch_batches, found[0].total_s = 15, 5, 3.0
    found[1].num_batches, found[1].total_s, found[1].reason = 30, 6.0, "a stream stays as it is"
    few = "Folder at train.py:40 has 5 batches in an epoch, and at least 21 are needed; "
    other = "Folder at train.py:60 has 30 batches, and at least 31 are needed"
    assert words.summary(found) == [f"too few batches to measure: {few}{other}"]


def test_rates_are_those_of_all_ranks_and_a_loop_that_still_waits_gets_the_reason() -> None:
    other = {"first_samples_per_s": 100.0, "samples_per_s": 300.0, "bottleneck": "workers"}
    ranks = [kept(rank=rank, blocked_s=45.0, **other) for rank in (0, 1)]
    change, _, waits, _ = words.summary(ranks)
    assert change.endswith(": 4 → 16 workers: 176 → 600 samples/s of 2 ranks (3.4×, 3.1 to 3.8)")
    assert waits.endswith(" → 60% of the time: no more workers were found to pay off")
