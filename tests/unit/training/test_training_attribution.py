"""Where a window's seconds went: marks over a host clock and over a fake device that lags behind its host."""

from typing import Any

import pytest

from loadtune.training.attribution import DeviceMarks, HostMarks


class FakeDevice:
    """A stream: work is queued by the host and done in order; an event is passed when all before it is done."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.busy_until_s = 0.0
        self.events: list[FakeEvent] = []

    def launch(self, seconds: float) -> None:
        self.busy_until_s = max(self.busy_until_s, self.host_s) + seconds

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.busy_until_s)

    def make_event(self) -> Any:
        self.events.append(FakeEvent(self))
        return self.events[-1]


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.passed_s = 0.0
        self.waited_for = 0

    def record(self, stream: object) -> None:
        self.passed_s = max(self.device.busy_until_s, self.device.host_s)

    def synchronize(self) -> None:
        self.waited_for += 1
        self.device.host_s = max(self.device.host_s, self.passed_s)

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert max(self.passed_s, end.passed_s) <= self.device.host_s, "read before the device had passed it"
        return (end.passed_s - self.passed_s) * 1000


def train(device: FakeDevice, marks: DeviceMarks, steps: int, *, wait: float, copy: float, compute: float) -> None:
    for _ in range(steps):
        device.host_s += wait
        marks.copying()
        device.launch(copy)
        marks.stepping()
        device.launch(compute)
        marks.stepped()


@pytest.mark.parametrize(
    ("wait", "copy", "compute", "idle"),
    [
        (0.001, 0.01, 0.04, 0.001),  # the host runs ahead: only before the first step the device has nothing to do
        (0.1, 0.01, 0.04, 0.1 + 9 * (0.1 - 0.05)),  # the loader is the wall: its wait, less what the device still did
        (0.001, 0.04, 0.01, 0.001),
    ],
)
def test_parts_are_the_devices_own_and_add_up_to_the_window(
    wait: float, copy: float, compute: float, idle: float
) -> None:
    device = FakeDevice()
    marks = DeviceMarks(device.make_event)
    train(device, marks, 10, wait=wait, copy=copy, compute=compute)
    device.synchronize()
    parts = marks.cut()
    assert parts.copy_s == pytest.approx(10 * copy)
    assert parts.compute_s == pytest.approx(10 * compute)
    assert parts.idle_s == pytest.approx(idle)
    assert parts.copy_s + parts.compute_s + parts.idle_s == pytest.approx(device.host_s)


def test_on_a_cpu_the_hosts_clock_says_it() -> None:
    at = [100.0]
    marks = HostMarks(lambda: at[0])
    for _ in range(3):
        at[0] += 0.25
        marks.copying()
        at[0] += 0.5
        marks.stepping()
        at[0] += 1.0
        marks.stepped()
    parts = marks.cut()
    assert (parts.idle_s, parts.copy_s, parts.compute_s) == (0.75, 1.5, 3.0)
    assert marks.cut().compute_s == 0.0
