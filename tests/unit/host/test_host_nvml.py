"""What NVML says of a running GPU, and in which words it refuses: canned answers, another driver's library, none."""

import sys
from ctypes import POINTER, c_void_p, cast
from types import SimpleNamespace

import pynvml
import pytest
from nvml_fakes import MIG, NOT_FOUND, UUIDS, BrokenNvml, FakeNvml, FakeNvmlError

from loadtune.host import choose_device, read_host, read_telemetry
from loadtune.host.gpm import Gpm
from loadtune.host.gpu_processes import GpuOthers, others_sm_fraction, sees_the_drivers_ids
from loadtune.host.gpu_samples import LONGEST_S, DutySample, GpuUtilization, parse_samples
from loadtune.host.gpu_state import GpuClocks, GpuState
from loadtune.host.nvml import Nvml, NvmlDevice
from loadtune.host.probes import machine_probes
from loadtune.host.sensing import Missing
from loadtune.host.telemetry import Sampler
from loadtune.host.throttle import throttle_words
from loadtune.records import Device, Telemetry

DUTY = "gpu_utilization_fraction"
OF_THE_DUTY_CYCLE = {"gpu_utilization_p5_fraction", "gpu_utilization_p95_fraction", "gpu_idle_fraction"}
US = 1_000_000


@pytest.fixture
def gpu(monkeypatch):
    """Give it a fake library, get a device opened over it."""

    def put(library, uuid=UUIDS[0]):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return NvmlDevice(uuid, Nvml())

    return put


# Why something cannot be had


@pytest.mark.parametrize(
    ("library", "uuid", "words"),
    [
        (None, UUIDS[0], "no NVIDIA driver answers"),
        (FakeNvml(), "GPU-not-there", "the GPU does not answer"),
        (FakeNvml(refusing=("nvmlDeviceGetPowerUsage",)), UUIDS[0], "not supported by this GPU"),
        (FakeNvml(refusing=("nvmlDeviceGetPowerUsage",)), MIG, "not supported under MIG"),
        (FakeNvml(refusing=("nvmlDeviceGetPowerUsage",), nvmlDeviceGetMigMode=[1, 1]), UUIDS[0], "under MIG"),
        (FakeNvml(refusing=("nvmlDeviceGetPowerUsage",), error=4), UUIDS[0], "no permission"),
        (FakeNvml(refusing=("nvmlDeviceGetPowerUsage",), error=13), UUIDS[0], "the driver is too old"),
        (FakeNvml(refusing=("nvmlDeviceGetPowerUsage",), error=999), UUIDS[0], "999"),
        (BrokenNvml(), UUIDS[0], "the library is from another driver"),
    ],
)
def test_a_refusal_has_its_reason_in_words(gpu, library, uuid, words):
    answer = gpu(library, uuid).ask("nvmlDeviceGetPowerUsage")
    assert answer.value is None
    assert words in answer.reason


def test_a_binding_that_does_not_know_the_function_is_the_reason(gpu):
    assert "nvidia-ml-py is too old" in gpu(FakeNvml()).ask("nvmlDeviceGetSomethingNew").reason


def test_a_driver_that_raises_on_every_call_leaves_a_reason_for_each_figure(gpu):
    """The whole sampler over it: nothing raises, everything else is read."""
    device = Device(kind="cuda", uuid=UUIDS[0], name="H200")
    sampler = Sampler(device, lambda: None, 2, probes=machine_probes(device, lambda: None, 2, gpu(BrokenNvml()).nvml))
    for _ in range(2):
        sampler.sample(everything=True)
    sampler.close()
    seen = sampler.between(0.0, sampler.latest().at_s)
    assert seen.ram_available_bytes > 0
    of_the_gpu = {figure for probe in (GpuUtilization, GpuState, GpuClocks, Gpm) for figure in probe.figures}
    assert of_the_gpu <= set(seen.missing)
    assert all(getattr(seen, figure) is None and seen.missing[figure] for figure in of_the_gpu)


# Memory, power, energy, clocks


def test_energy_is_the_difference_of_the_drivers_counter(gpu):
    counter = iter([5_000, 12_500, 12_500, 100, 350])  # mJ; then the driver was loaded anew
    probe = GpuState(gpu(FakeNvml(nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counter))))
    assert probe.look(0.0) == {"gpu_memory_used_bytes": 300, "gpu_power_w": 350.0, "gpu_energy_j": None}
    assert [probe.look(t)["gpu_energy_j"] for t in (1.0, 2.0, 3.0, 4.0)] == [7.5, 0.0, None, 0.25]


def test_clocks_and_what_holds_them_down(gpu):
    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
    library = FakeNvml(
        nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind],
        nvmlDeviceGetCurrentClocksEventReasons=pynvml.nvmlClocksEventReasonSwPowerCap,
    )
    seen = GpuClocks(gpu(library)).look(0.0)
    assert (seen["gpu_sm_clock_hz"], seen["gpu_memory_clock_hz"]) == (1.98e9, 3.201e9)
    assert seen["gpu_throttle_fractions"] == ("power cap",)


def test_an_older_driver_is_asked_by_the_older_name(gpu):
    library = FakeNvml(
        refusing=("nvmlDeviceGetCurrentClocksEventReasons",), error=13, nvmlDeviceGetCurrentClocksThrottleReasons=0x40
    )
    assert GpuClocks(gpu(library)).look(0.0)["gpu_throttle_fractions"] == ("hot (hardware)",)


def test_every_bit_of_the_binding_has_a_word_of_its_own():
    bits = pynvml.nvmlClocksThrottleReasonAll
    words = throttle_words(bits)
    assert len(words) == len(set(words)) == bits.bit_count()
    assert not any(word.startswith("reason") for word in words)
    assert throttle_words(0) == ()
    assert throttle_words(0x10000 | 0x4) == ("power cap", "reason 0x10000")


# The duty cycle from the driver's buffer


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


def test_samples_are_read_in_order_and_impossible_ones_left_out():
    value_type, samples = buffer_of((30, 100), (10, 7), (20, 101), (25, 0))
    assert parse_samples(value_type, samples, after_us=10) == [DutySample(25, 0.0), DutySample(30, 1.0)]


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


def test_without_either_there_is_a_reason(gpu):
    refusing = ("nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates")
    assert GpuUtilization(gpu(FakeNvml(refusing=refusing), MIG)).look(1.0)[DUTY] == Missing("not supported under MIG")


# Performance counters


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


def test_a_sample_that_fails_makes_the_next_a_beginning(gpu):
    counters = Counters(SM_UTIL=50.0)
    library = FakeNvml(**counters.answers())
    probe = Gpm(gpu(library))
    probe.look(0.0)
    library.refusing = ("nvmlGpmSampleGet",)
    assert isinstance(probe.look(0.5)["gpu_sm_activity_fraction"], Missing)
    library.refusing = ()
    assert probe.look(1.0) == {}


# Other processes


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


def test_shares_are_means_of_each_process_and_garbage_is_left_out():
    samples = [sample_of(1, 10), sample_of(1, 30), sample_of(2, 50), sample_of(0, 90), sample_of(3, 4_000_000)]
    assert others_sm_fraction(samples, {2}) == pytest.approx(0.2)
    assert others_sm_fraction([sample_of(pid, 60) for pid in (5, 6)], set()) == 1.0


@pytest.mark.gpu
def test_a_real_gpu_gives_every_figure_or_its_reason():
    """Idle as well as busy: what is printed is what this driver and this chip can tell."""
    host = read_host()
    device = choose_device(host, "cuda")
    seen = read_telemetry(device, host.num_usable_cores)
    of_the_gpu = [name for name in Telemetry.__dataclass_fields__ if name.startswith("gpu_")]
    known = {name: getattr(seen, name) for name in of_the_gpu if getattr(seen, name) is not None}
    print(known, seen.missing)
    assert set(of_the_gpu) == set(known) | (set(seen.missing) & set(of_the_gpu)) | OF_THE_DUTY_CYCLE - set(known)
    assert all(0 <= value <= 1 for name, value in known.items() if name.endswith("_fraction"))
    assert known["gpu_memory_used_bytes"] > 0
    assert seen.gpu_energy_j is None or seen.gpu_energy_j > 0
