"""`loadtune report --live`: a real server on loopback, and what is said where a study cannot be shown."""

import importlib.util
import json
import signal
import socket
import urllib.error
import urllib.request

import pytest
from cli_rig import Command
from study_rig import begun_study, trial
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.errors import UsageError
from loadtune.search.study import HOST, dashboard_server

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
    with Command(tmp_path, "report", "--live", "--port", "0") as command:
        command.until(lambda: "Dashboard: " in command.stdout())
        yield command, command.stdout().partition("Dashboard: ")[2].split()[0]


def asked(url, method="GET"):
    request = urllib.request.Request(url.replace("/dashboard", "/api/studies"), method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


@needs_extra
def test_it_shows_a_running_study_as_it_is_and_changes_nothing(study, served):
    file, running, still = study
    url, before = served[1], file.read_bytes()
    detail = asked(f"{url}/1")
    assert [trial["state"] for trial in detail["trials"]] == ["Complete", "Complete", "Running"]
    assert [max(trial["constraints"], default=0) <= 0 for trial in detail["trials"]] == [True, False, True]
    assert ["values" in trial for trial in detail["trials"]] == [True, True, False]
    assert [trial["number"] for trial in detail["best_trials"]] == [0]
    assert detail["objective_names"] == ["samples/s"]
    with pytest.raises(urllib.error.HTTPError, match="500"):
        asked(f"{url}/1", "DELETE")
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
    running.tell(trial(still, 5000.0))
    running.write(file)
    assert asked(f"{url}/1")["best_trials"][0]["values"] == [5000.0]


@needs_extra
def test_it_ends_when_it_is_asked_to_and_leaves_nothing(study, served):
    command, url = served
    asked(url)
    with socket.create_connection((HOST, int(url.split(":")[2].partition("/")[0]))):  # as browsers keep one open
        command.signal(signal.SIGTERM)
        ended = command.end()
    assert (ended.code, ended.left_behind) == (143, [])
    assert "Traceback" not in ended.stderr


@needs_extra
def test_a_port_that_is_taken_is_told(study):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"--port is {port}, .*--port 0"):
            dashboard_server(study[0], port)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("nothing", "no study.db"),
        ("no extra", "pip install '.[live]'"),
        pytest.param("no study, but text\n" * 500, "file is not a database. It takes the study.db", marks=needs_extra),
    ],
)
def test_where_it_cannot_be_shown_it_says_what_to_do(tmp_path, monkeypatch, there, said):
    if there != "nothing":
        (tmp_path / "study.db").write_text(there)
    if there == "no extra":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(app, ["report", "--live", str(tmp_path)])
    assert ended.exit_code == 2
    assert said in ended.stderr
