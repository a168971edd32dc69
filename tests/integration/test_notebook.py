"""`examples/colab.ipynb` in a kernel: a loop is tuned, and a search that is interrupted keeps what it measured."""

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest
from cli_rig import GONE_S, until
from training_workloads import has_trial

import loadtune

nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
ROOT = Path(__file__).resolve().parents[2]


def test_its_cells_run_and_ctrl_c_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    notebook = nbformat.read(ROOT / "examples" / "colab.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())]
    client = nbclient.NotebookClient(notebook, timeout=170, resources={"metadata": {"path": str(tmp_path)}})
    left: list[psutil.Process] = []

    def interrupt() -> None:
        runs = tmp_path / "loadtune-results"
        until(lambda: any(map(has_trial, runs.glob("*/*/run.json"))), 150.0)
        pid = client.km.provisioner.pid
        left.extend(psutil.Process(pid).children(recursive=True))
        os.kill(pid, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with client.setup_kernel():
        thread.start()
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
        thread.join()
        assert left
        assert until(lambda: not any(map(psutil.Process.is_running, left)), GONE_S)
    looped, searched, _ = (cell.outputs for cell in notebook.cells if "loadtune." in cell.source and "outputs" in cell)
    assert "/num_workers" in looped[-1].data["text/plain"]
    assert "searching" in "".join(each.text for each in searched if each.output_type == "stream")
    assert "samples/s" in searched[-1].data["text/plain"]
    (stored,) = tmp_path.glob("loadtune-results/*/*/result.json")
    assert loadtune.load_result(stored).interrupted_by == "SIGINT"
