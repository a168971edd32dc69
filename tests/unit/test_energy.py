"""Whether a run for samples per joule may begin."""

import pytest

from loadtune.errors import DeviceError
from loadtune.records.facts import Device
from loadtune.records.telemetry import Telemetry
from loadtune.tuner import _check_energy as check_energy

GPU, CPU = Device(kind="cuda", uuid="GPU-0", name="Fake GPU"), Device(kind="cpu", uuid=None, name="Fake CPU")


def seen(energy_j: float | None) -> Telemetry:
    missing = {} if energy_j is not None else {"gpu_energy_j": "Not Supported"}
    return Telemetry(seconds=0.25, gpu_energy_j=energy_j, missing=missing)


def test_a_gpu_with_a_counter_may_go_on() -> None:
    assert check_energy(GPU, lambda: seen(30.0)) is None


def test_a_gpu_without_one_is_refused_with_the_drivers_reason() -> None:
    with pytest.raises(DeviceError, match=r"Fake GPU .*: Not Supported.*leave --objective out"):
        check_energy(GPU, lambda: seen(None))


def test_a_cpu_is_refused_and_not_looked_at() -> None:
    with pytest.raises(DeviceError, match="Fake CPU is not a GPU"):
        check_energy(CPU, lambda: pytest.fail("looked"))
