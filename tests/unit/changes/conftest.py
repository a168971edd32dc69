import pytest

from loadtune.changes import trial


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is timed for less long: these tests are about what is loaded."""
    monkeypatch.setattr(trial, "ENOUGH_S", 0.02)
