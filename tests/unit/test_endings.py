"""The log that the words of an ending name is kept."""

from contextlib import suppress
from pathlib import Path

import pytest

from loadtune.errors import OutOfTimeError
from loadtune.report.store import LOG_FILE, run_folder

STUCK = OutOfTimeError("", stuck="dataset[41] (in a batch of 16: 7, 41, …) did not return for 12 s, in a worker")


@pytest.mark.parametrize("end", [STUCK, OutOfTimeError("", phase="build")])
def test_the_log_is_kept_where_it_has_the_stacks(tmp_path: Path, end: OutOfTimeError) -> None:
    with suppress(OutOfTimeError), run_folder(None, tmp_path, "label") as folder:
        (folder / LOG_FILE).touch()
        raise end
    assert len(list(tmp_path.rglob(LOG_FILE))) == (end.stuck is not None)
