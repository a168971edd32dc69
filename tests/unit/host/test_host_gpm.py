"""Performance counters over canned samples, in the binding's own structures."""

from ctypes import POINTER, c_void_p, cast
from types import SimpleNamespace

import pynvml
import pytest
from nvml_fakes import FakeNvml

from loadtune.host.gpu_probes import Gpm
from loadtune.host.sensing import Missing


class Counters:
    """A GPU that supports GPM: samples are pointers, the metrics what the test says."""

    def __init__(self, **metrics):
        self.metrics = {pynvml.__dict__[f"NVML_GPM_METRIC_{name}"]: value for name, value in metrics.items()}
        self.allocated, self.freed, self.between = [], [], []

    def answers(self):
        return {
            "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
            "nvmlGpmSampleAlloc": self.allocate,
            "nvmlGpmSampleFree": lambda sample: self.freed.append(address(sample)),
            "nvmlGpmSampleGet": lambda handle, sample: sample,
            "nvmlGpmMetricsGet": self.measure,
        }

    def allocate(self):
        self.allocated.append(4096 * (len(self.allocated) + 1))
        return cast(self.allocated[-1], POINTER(pynvml.struct_c_nvmlGpmSample_t))

    def measure(self, asked):
        assert asked.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        self.between.append((address(asked.sample1), address(asked.sample2)))
        for position in range(asked.numMetrics):
            metric = asked.metrics[position]
            metric.nvmlReturn = 0 if metric.metricId in self.metrics else 3
            metric.value = self.metrics.get(metric.metricId, 0.0)
        return asked


def address(pointer):
    return cast(pointer, c_void_p).value


def test_counters_are_of_the_time_between_two_looks(gpu):
    counters = Counters(
        SM_UTIL=61.5,
        SM_OCCUPANCY=40.0,
        ANY_TENSOR_UTIL=33.0,
        DRAM_BW_UTIL=0.0,
        PCIE_RX_PER_SEC=2048.0,
        PCIE_TX_PER_SEC=1.5,
    )
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    assert probe.look(0.0) == {}
    seen = probe.look(0.5)
    assert seen == pytest.approx({
        "gpu_sm_activity_fraction": 0.615,
        "gpu_sm_occupancy_fraction": 0.4,
        "gpu_tensor_activity_fraction": 0.33,
        "gpu_dram_bandwidth_fraction": 0.0,
        "gpu_pcie_read_bytes_per_s": 2**31,
        "gpu_pcie_write_bytes_per_s": 1.5 * 2**20,
    })  # fmt: skip
    probe.look(1.0)
    first, second = counters.between
    assert first == second[::-1]  # the later sample of one look is the earlier of the next


def test_buffers_are_given_back_and_taken_anew(gpu):
    counters = Counters(SM_UTIL=1.0)
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    probe.look(0.0)
    probe.close()
    assert sorted(counters.freed) == counters.allocated
    assert probe.look(0.5) == {}  # no difference across the gap
    assert probe.look(1.0)["gpu_sm_activity_fraction"] == pytest.approx(0.01)
    probe.close()
    assert sorted(counters.freed) == counters.allocated
    assert len(counters.allocated) == 4


def test_a_counter_that_is_refused_costs_only_itself_and_no_number_is_none(gpu):
    counters = Counters(SM_UTIL=50.0, DRAM_BW_UTIL=float("nan"))
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    probe.look(0.0)
    seen = probe.look(0.5)
    assert seen["gpu_sm_activity_fraction"] == 0.5
    assert seen["gpu_dram_bandwidth_fraction"] is None
    assert isinstance(seen["gpu_tensor_activity_fraction"], Missing)


def test_a_gpu_before_hopper_is_asked_once_and_has_its_reason(gpu):
    library = FakeNvml(nvmlGpmQueryDeviceSupport=SimpleNamespace(isSupportedDevice=0))
    probe = Gpm(gpu(library))
    for now_s in (0.0, 0.5):
        assert "Hopper" in probe.look(now_s)["gpu_sm_activity_fraction"].reason
    assert library.calls.count("nvmlGpmQueryDeviceSupport") == 1
