"""The duty cycle from the driver's buffer, whatever clock stamps it, and from `utilization.gpu` where it runs dry."""

from types import SimpleNamespace

import pynvml
import pytest
from nvml_fakes import NOT_FOUND, FakeNvml, FakeNvmlError

from loadtune.host.gpu_probes import LONGEST_S, GpuUtilization

DUTY = "gpu_utilization_fraction"
US = 1_000_000


def buffer_of(*samples):
    """As pynvml delivers it, in its own structures: stamps in µs, whole per cent."""
    made = []
    for stamp_us, percent in samples:
        sample = pynvml.c_nvmlSample_t()
        sample.timeStamp, sample.sampleValue.uiVal = stamp_us, percent
        made.append(sample)
    return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, made


class Buffer:
    """The driver's samples, given out as far as a look has come; refuses where there is none."""

    def __init__(self, *samples):
        self.samples = samples
        self.now_us = 0

    def __call__(self, handle, kind, after_us):
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        fresh = [sample for sample in self.samples if after_us < sample[0] <= self.now_us]
        if not fresh:
            raise FakeNvmlError(NOT_FOUND)
        return buffer_of(*fresh)


@pytest.mark.parametrize("epoch_us", [0, 1_795_000_000 * US])
def test_samples_speak_for_the_time_since_the_one_before_whatever_clock_stamps_them(gpu, epoch_us):
    buffer = Buffer(*((epoch_us + t, p) for t, p in ((100_000, 0), (300_000, 50), (400_000, 100))))
    probe = GpuUtilization(gpu(FakeNvml(nvmlDeviceGetSamples=buffer)))
    buffer.now_us = epoch_us + 100_000
    probe.look(1000.1)
    buffer.now_us = epoch_us + 400_000
    stretches = probe.look(1000.4)[DUTY]
    assert [(round(s.start_s, 6), round(s.end_s, 6), s.value) for s in stretches] == [
        (1000.1, 1000.3, 0.5),
        (1000.3, 1000.4, 1.0),
    ]


def test_a_gap_in_the_buffer_is_not_made_up(gpu):
    buffer = Buffer((US, 100), (9 * US, 100))
    buffer.now_us = US
    probe = GpuUtilization(gpu(FakeNvml(nvmlDeviceGetSamples=buffer)))
    probe.look(1.0)
    buffer.now_us = 9 * US
    (stretch,) = probe.look(9.0)[DUTY]
    assert (stretch.start_s, stretch.end_s) == (9.0 - LONGEST_S, 9.0)


def test_an_idle_gpu_whose_buffer_runs_dry_is_a_measured_zero(gpu):
    buffer = Buffer((US, 90))
    idle = SimpleNamespace(gpu=0, memory=0)
    probe = GpuUtilization(gpu(FakeNvml(nvmlDeviceGetSamples=buffer, nvmlDeviceGetUtilizationRates=idle)))
    buffer.now_us = US
    probe.look(1.0)
    assert probe.look(1.5) == {}  # nothing new yet
    (stretch,) = probe.look(2.5)[DUTY]
    assert (stretch.start_s, stretch.end_s, stretch.value) == (1.5, 2.5, 0.0)


def test_without_a_buffer_the_drivers_own_mean_is_taken(gpu):
    probe = GpuUtilization(gpu(FakeNvml(refusing=("nvmlDeviceGetSamples",))))
    first, second = (probe.look(t)[DUTY][0] for t in (1.0, 1.1))
    assert first.start_s == first.end_s
    assert (second.start_s, second.end_s, second.value) == (1.0, 1.1, 0.25)
