"""A GPU without a driver, for all tests of what NVML says."""

import sys

import pytest
from nvml_fakes import UUIDS

from loadtune.host.nvml import PATIENCE_S, Nvml, NvmlDevice


@pytest.fixture
def gpu(monkeypatch):
    """Give it a fake library, get a device opened over it."""

    def put(library, uuid=UUIDS[0], patience_s=PATIENCE_S):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return NvmlDevice(uuid, Nvml(patience_s))

    return put
