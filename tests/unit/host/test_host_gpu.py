"""NVML behind its one door: a fake library, a broken one, none at all; which GPUs are visible; choosing one."""

import sys

import pytest
from nvml_fakes import MIG, UUIDS, BrokenNvml, FakeNvml

from loadtune.host import gpu
from loadtune.host.gpu import visible_uuids
from loadtune.host.nvml import Nvml
from loadtune.records.facts import GpuProcess

NVML_MEMORY_V2 = 0x02000028


@pytest.fixture
def opened(monkeypatch):
    """Give it a fake library, get NVML opened over it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(library):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return Nvml()

    return put


def test_every_installed_gpu_is_read_and_who_holds_its_memory(opened):
    gpus = gpu.read_gpus(opened(FakeNvml()))
    assert [(found.uuid, found.index) for found in gpus] == list(zip(UUIDS, range(3), strict=True))
    first = gpus[0]
    assert (first.name, first.total_bytes, first.free_bytes) == ("NVIDIA H200", 1000, 700)
    assert (first.driver_bytes, first.others_bytes, first.utilization_fraction) == (40, 260, 0.25)
    assert (first.num_multiprocessors, first.compute_capability) == (132, "9.0")
    assert first.processes == (
        GpuProcess(pid=812, name="python3", used_bytes=200),  # in two of the driver's lists, counted once
        GpuProcess(pid=813, name="chrome", used_bytes=60),
        GpuProcess(pid=9, name=None, used_bytes=None),
    )


def test_an_older_driver_does_not_tell_its_own_share_from_others(opened):
    found = gpu.read_gpus(opened(FakeNvml(refusing=(NVML_MEMORY_V2,))))[0]
    assert (found.total_bytes, found.free_bytes) == (1000, 700)
    assert (found.driver_bytes, found.others_bytes) == (None, None)


def test_visible_gpus_keep_cudas_order_and_nvmls_index(opened, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-aaaa")
    gpus = gpu.read_gpus(opened(FakeNvml()))
    assert [(g.uuid, g.index) for g in gpus] == [(UUIDS[2], 2), (UUIDS[0], 0)]


def test_a_mig_instance_is_read_under_its_own_name(opened, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIG)
    (instance,) = gpu.read_gpus(opened(FakeNvml()))
    assert (instance.uuid, instance.index, instance.utilization_fraction) == (MIG, 2, None)
    assert instance.num_multiprocessors == 16


@pytest.mark.parametrize("library", [None, FakeNvml(refusing=("nvmlInit",)), BrokenNvml()])
def test_a_missing_or_broken_driver_answers_none(opened, library):
    nvml = opened(library)  # None in sys.modules makes the import itself fail
    assert gpu.read_gpus(nvml) == ()
    assert gpu.read_driver(nvml) is None


def test_a_gpu_without_memory_of_its_own_has_the_machines(opened):
    gpus = gpu.read_gpus(opened(FakeNvml(refusing=("nvmlDeviceGetMemoryInfo",))))
    assert len(gpus) == 3
    assert 0 < gpus[0].free_bytes <= gpus[0].total_bytes


@pytest.mark.parametrize(
    ("variable", "positions"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        (" 2 , 0 ", [2, 0]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("0,none", [0]),
        ("0,0", []),
        ("GPU-cccc-3", [2]),
        ("gpu-cccc", []),
        ("GPU-aab,0", [1, 0]),
        ("GPU-aa", []),  # two begin like this
        ("GPU-aaaa-1,0", []),  # one GPU under two names
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(variable, positions):
    assert visible_uuids(variable, UUIDS) == tuple(UUIDS[position] for position in positions)


@pytest.mark.gpu
def test_a_real_gpu_answers():
    gpus = gpu.read_gpus()
    assert gpus
    assert gpu.read_driver()
    for found in gpus:
        assert 0 < found.free_bytes <= found.total_bytes
        assert 0 <= (found.driver_bytes or 0) <= found.total_bytes - found.free_bytes
        assert 0 <= (found.utilization_fraction or 0.0) <= 1
