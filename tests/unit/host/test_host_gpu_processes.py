"""What other processes hold and take of a GPU, where that can be told."""

from types import SimpleNamespace

import pytest
from nvml_fakes import NOT_FOUND, FakeNvml

from loadtune.host.gpu_probes import GpuOthers, sees_the_drivers_ids


@pytest.fixture
def namespace(tmp_path):
    """Says whether process ids are the driver's."""
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    return link


def sample_of(pid, percent, stamp_us=1):
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=stamp_us)


def test_what_others_hold_and_take(gpu, namespace):
    # stamp, then who used how much until then
    delivered = iter([[sample_of(9, 99, 5)], [sample_of(9, 20, 6), sample_of(812, 60, 6), sample_of(9, 99, 5)]])
    library = FakeNvml(
        nvmlDeviceGetGraphicsRunningProcesses=[],
        nvmlDeviceGetProcessUtilization=lambda handle, after_us: next(delivered),
    )
    probe = GpuOthers(gpu(library), lambda: {812}, namespace)
    assert probe.look(0.0) == {"gpu_others_memory_bytes": 60, "gpu_others_sm_fraction": None}
    assert probe.look(1.0)["gpu_others_sm_fraction"] == pytest.approx(0.2)


def test_nobody_since_the_last_look_is_a_measured_zero(gpu, namespace):
    library = FakeNvml(refusing=("nvmlDeviceGetProcessUtilization",), error=NOT_FOUND)
    probe = GpuOthers(gpu(library), lambda: set(), namespace)
    probe.look(0.0)
    assert probe.look(1.0)["gpu_others_sm_fraction"] == 0.0


def test_memory_that_is_not_told_apart_has_its_reason(gpu, namespace):
    seen = GpuOthers(gpu(FakeNvml()), lambda: {812, 813}, namespace).look(0.0)
    assert "tell" in seen["gpu_others_memory_bytes"].reason


def test_process_ids_in_a_container_are_not_compared(gpu, tmp_path):
    (tmp_path / "pid").symlink_to("pid:[4026532281]")
    seen = GpuOthers(gpu(FakeNvml()), lambda: set(), tmp_path / "pid").look(0.0)
    assert {missing.reason for missing in seen.values()} == {"in a container process ids are not the driver's"}
    assert sees_the_drivers_ids(tmp_path / "no namespaces here")
