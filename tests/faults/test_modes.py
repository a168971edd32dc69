"""`loadtune exec` in the ways that Python is run: a training sees, says and ends as without it, and nothing is left."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_rig import segments, until
from forked import Forked

from loadtune.stream.shm_cleanup import group_members

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "inflight_modes.py"
IN_ONE_SCRIPT = ("plain", "traced", "profiled", "forking", "threads", "exits", "raises", "leaves")
OF_PYTHON = {
    "dev": ("-X", "dev", "-W", "ignore:This process"),  # with faulthandler and PYTHONMALLOC=debug
    "optimized": ("-O",),
    "debugger": ("-m", "pdb", "-c", "continue", "-c", "quit"),
}
"""Options of Python, for one mode."""
OF_WORKERS = {"spawn": (0, 1), "forkserver": (1, 2)}
"""How many there are, and how many others."""


class Ended:
    """A run of the script, which has ended: without ``others`` plainly, else it switches to so many at batch 4."""

    def __init__(self, folder, modes, python=(), own=1, others=None, **environment):
        folder.mkdir()
        self.folder, command = folder, [sys.executable, *python, str(SCRIPT), str(folder), str(own), *modes]
        if others is not None:
            command = [sys.executable, "-m", "loadtune", "exec", "--out", str(folder), "--", *command]
            environment |= {"OTHER_WORKERS": str(others)}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOADTUNE_RAISE": "1"} | environment
        # With options of Python that is a new interpreter, else all is forked from this one, but for spawned workers.
        begin, given = subprocess.Popen if python else Forked, {"stdin": subprocess.DEVNULL, "start_new_session": True}
        paths = folder / "stdout", folder / "stderr"
        with paths[0].open("w") as out, paths[1].open("w") as error:
            process = begin(command, env=environment, cwd=folder, stdout=out, stderr=error, **given)
        self.code, self.group = process.wait(timeout=120), process.pid
        self.out, error = (path.read_text() for path in paths)
        self.said = [line for line in error.splitlines() if not line.startswith("loadtune:")]

    def of(self, mode):
        """What its loops saw, what it printed, how it ended."""
        logs = {path.name.removeprefix(mode): path.read_text() for path in self.folder.glob(f"{mode}*.log")}
        ended = [path.read_text() for path in (self.folder / f"{mode}.{each}" for each in ("out", "code"))]
        said = (self.folder / f"{mode}.err").read_text().splitlines()
        # Times and ids of processes differ; a profiler subtracts times.
        said = [re.sub(r"(?<!\d)-?\d+", "#", line) for line in said if not line.startswith("loadtune:")]
        return logs, ended, said

    def switched(self):
        """Of how many loaders the number of workers was changed."""
        return sum(
            bool(each["switches"]) for each in json.loads((self.folder / "inflight.json").read_text())["loaders"]
        )

    def check_nothing_is_left(self):
        assert until(lambda: not group_members(self.group))
        pids = [path.stem for path in self.folder.glob("*.pid")]
        assert len(pids) >= 2
        assert segments(pids) == []


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    return Ended(tmp_path_factory.mktemp("modes") / "without", IN_ONE_SCRIPT)


def test_a_training_that_is_traced_profiled_forked_threaded_or_left(without, tmp_path):
    tuned = Ended(tmp_path / "tuned", IN_ONE_SCRIPT, others=2)
    for mode in IN_ONE_SCRIPT:
        assert tuned.of(mode) == without.of(mode)
    assert (tuned.out, tuned.code, tuned.said) == ("", 0, [])
    assert tuned.switched() == len(IN_ONE_SCRIPT) + 1, "two in threads; those of a forked child are not its parent's"
    tuned.check_nothing_is_left()


@pytest.mark.parametrize("mode", [*OF_PYTHON, *OF_WORKERS])
def test_a_training_under_another_python_or_start_method(mode, without, tmp_path):
    """With a sitecustomize of the user's."""
    code = "import os, sys\nos.makedirs(f'ran with -O {sys.flags.optimize}', exist_ok=True)"
    (tmp_path / "sitecustomize.py").write_text(code)
    path, python = os.pathsep.join([str(ROOT), str(tmp_path)]), OF_PYTHON.get(mode, ())
    (own, others), run = OF_WORKERS.get(mode, (1, 2)), mode if mode in OF_WORKERS else "plain"
    tuned = Ended(tmp_path / "tuned", (run,), python, own, others, PYTHONPATH=path)
    assert (tmp_path / "tuned" / f"{run}.log").read_text() == without.of("plain")[0][".log"]
    assert (tmp_path / "tuned" / f"ran with -O {int(mode == 'optimized')}").exists()
    printed = Ended(tmp_path / "plain", (run,), python).out if mode == "debugger" else "trained\n"
    assert (tuned.out, tuned.code, tuned.said) == (printed, 0, [])
    assert tuned.switched() == 1
    tuned.check_nothing_is_left()
