"""The folder for everything temporary: where it lies, and that it goes."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from loadtune.bench import lifeline
from loadtune.bench.lifeline import Scratch


def test_a_worker_can_open_its_socket_whatever_the_length_of_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    own = Scratch()
    folder = own.folder()
    try:
        assert len(os.fsencode(folder / "pymp-abcdefgh" / "listener-abcdefgh")) <= lifeline._LONGEST_SOCKET
    finally:
        own.remove()
    shutil.rmtree(deep)
