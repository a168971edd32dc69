"""Standard streams that are closed, full or a terminal's, and texts that would harm them."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtune.errors import WorkloadError
from loadtune.units import MOST_TEXT
from loadtune.workload.user_code import last_line, reported, user_traceback

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "result.json"


def ended(words: str, redirected: str = "") -> subprocess.CompletedProcess:
    command = f'exec "$0" -m loadtune {words} {redirected}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("redirected", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_the_null_device(redirected: str) -> None:
    assert ended("doctor", redirected).returncode == 0


def test_output_that_cannot_be_written_is_an_error() -> None:
    full = ended("doctor --json", ">/dev/full")
    assert (full.returncode, full.stderr.count("\n")) == (2, 1)
    assert "No space left" in full.stderr


def test_names_in_a_stored_result_do_not_reach_the_terminal_as_control_characters(tmp_path: Path) -> None:
    harmful = GOLDEN.read_text().replace('"name": "NVIDIA', '"name": "\\u001b]0;owned\\u0007\\u009b31m')
    (tmp_path / "result.json").write_text(harmful)
    for words in (f"export {tmp_path}", f"export {tmp_path} --format json"):
        done = ended(words)
        assert done.returncode == 0
        assert done.stdout
        assert not set(done.stdout + done.stderr) & {"\x1b", "\x07", "\x9b"}


def test_an_error_of_megabytes_is_told_in_two_thousand_characters() -> None:
    with pytest.raises(WorkloadError) as told, reported("dataset[0] raised {}"):
        raise ValueError("x" * 50_000_000)
    assert "ValueError: xxx" in str(told.value)
    assert len(str(told.value)) < MOST_TEXT + 100
    error = told.value.__cause__
    assert error is not None
    assert max(len(last_line(error)), len(user_traceback(error) or "")) < MOST_TEXT + 100
