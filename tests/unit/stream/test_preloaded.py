"""What Python's forkserver imports for the workers that it forks."""

import subprocess
import sys
from multiprocessing import get_context

from loadtune.stream import torch_private as private

SCRIPT = """
import multiprocessing, os, sys
from loadtune.stream.torch_private import preload_forkserver

def drawn(_):
    given = "torch" in sys.modules
    import numpy
    return given, float(numpy.random.rand()), os.getppid()

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    preload_forkserver(context)
    pools = [context.Pool(1) for _ in range(2)]
    (first,), (second,) = (pool.map(drawn, [0]) for pool in pools)
    print(*first[:1], *second[:1], first[1] != second[1], first[2] == second[2] != os.getpid())
"""


def test_workers_have_torch_from_the_forkserver_and_random_numbers_of_their_own(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True True True True\n", "")


def test_what_the_user_has_it_import_stays(monkeypatch):
    server = private.forkserver._forkserver
    monkeypatch.setattr(server, "_forkserver_pid", None)
    usual = ["__main__"]
    for chosen, method, changes in (
        (["json"], "forkserver", False),
        (usual, "fork", False),
        (usual, "forkserver", True),
    ):
        monkeypatch.setattr(server, "_preload_modules", chosen)
        private.preload_forkserver(get_context(method))
        assert (server._preload_modules != chosen) == changes
