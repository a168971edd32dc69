"""What holds for every test."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline per example measures the machine, not the code: the first example also imports scipy.
settings.register_profile("loadtune", deadline=None)
settings.load_profile("loadtune")

# Beside other tests on the same cores OpenMP's threads wait for one another at barriers, 50 ms a layer at times.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shells start what runs in the background with Ctrl-C ignored, and nohup with SIGHUP. What a test starts would inherit
# that, and not end when it is asked to; a handler is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_collection_finish():
    """What was imported stays: each collection would look through all of it, half a second in a process with torch."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def in_thread(monkeypatch):
    """The training process is a thread of this one: for what is about answers, not about processes."""
    import torch
    from training_in_thread import BenchInThread

    monkeypatch.setattr("loadtune.training.client.TrainingProcess", BenchInThread)
    monkeypatch.setattr("traceback.print_exc", lambda: None)  # the training process writes it into its log
    torch.set_num_threads(1)  # as above


@pytest.fixture
def forked(monkeypatch):
    """The training process, or script, is forked from this one: for what is not about a new interpreter."""
    from forked import PROCESSES

    for module in ("training", "script"):
        monkeypatch.setattr(f"loadtune.{module}.process.subprocess", PROCESSES)


@pytest.fixture
def short_tmp(monkeypatch, tmp_path_factory):
    """The temporary folder, empty; with a path so short that a worker's socket, of 107 characters, may lie in it."""
    tmp_path_factory.getbasetemp()  # pytest's own folders lie where they always do
    folder = tempfile.mkdtemp(prefix="test-", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield Path(folder)
    shutil.rmtree(folder)
