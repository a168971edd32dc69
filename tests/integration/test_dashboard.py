"""`loadtune report --live` as a real server on loopback."""

import hashlib
import importlib.util
import json
import signal
import socket
import urllib.error
import urllib.request

import pytest
from cli_rig import Command
from study_rig import begun_study, trial

from loadtune.dashboard import HOST, dashboard_server
from loadtune.errors import UsageError

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("optuna_dashboard") is None, reason="optuna-dashboard is not installed"
)


@pytest.fixture
def study(tmp_path):
    """A study that is being written, in a run's folder."""
    folder = tmp_path / "cwd" / "loadtune-results" / "a-b" / "2026-11-20T10-00-00Z"
    folder.mkdir(parents=True)
    return folder / "study.db", *begun_study(folder)


@pytest.fixture
def served(study, tmp_path):
    """The command, listening, and its address."""
    command = Command(tmp_path, "report", "--live", "--port", "0")
    try:
        yield command, command.said("Dashboard: ")
    finally:
        command.kill()


def asked(url, method="GET"):
    request = urllib.request.Request(url.replace("/dashboard", "/api/studies"), method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def kinds(detail):
    """Of each trial: its state, whether it is feasible, whether a value is shown."""
    return [
        (trial["state"], all(excess <= 0 for excess in trial["constraints"]), "values" in trial)
        for trial in detail["trials"]
    ]


@needs_extra
def test_it_shows_a_running_study_as_it_is_and_changes_nothing(study, served):
    file, running, still = study
    url = served[1]
    before = hashlib.sha256(file.read_bytes()).digest()
    detail = asked(f"{url}/1")
    assert kinds(detail) == [
        ("Complete", True, True),
        ("Complete", False, True),
        ("Running", True, False),
    ]
    assert [trial["number"] for trial in detail["best_trials"]] == [0]
    assert detail["objective_names"] == ["samples/s"]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        asked(f"{url}/1", "DELETE")
    assert hashlib.sha256(file.read_bytes()).digest() == before
    running.tell(trial(still, 5000.0))
    assert asked(f"{url}/1")["best_trials"][0]["values"] == [5000.0]


@needs_extra
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_when_it_is_asked_to_and_leaves_nothing(study, served, number, code):
    command, url = served
    asked(url)
    command.signal(number)
    ended = command.end()
    assert (ended.code, ended.stderr, ended.left_behind) == (code, "", [])


@needs_extra
def test_a_port_that_is_taken_is_told(study):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--port is {port}, .*--port 0"), dashboard_server(study[0], port):
            pass
