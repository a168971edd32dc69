"""What a caller of `tune` can mend is said before anything is measured or written."""

from pathlib import Path

import pytest

from loadtune import TuneConfig, YourSettings, tune
from loadtune.errors import UsageError


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"time_budget_s": -1}, "--time-budget is -1"),
        ({"num_trials": 0}, "--trials is 0"),
        ({"yours": YourSettings(batch_size=64), "max_batch_size": 32}, "--batch-size is 64, .* --max-batch-size 32"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, words, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        tune(config=TuneConfig(**wrong, out=str(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []
