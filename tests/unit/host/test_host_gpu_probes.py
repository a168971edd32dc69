"""What NVML says of a running GPU, and in which words it refuses, over a fake library; a real one."""

import threading
import time
from ctypes import POINTER, c_void_p, cast
from types import SimpleNamespace

import pynvml
import pytest
from nvml_fakes import NOT_FOUND, UUIDS, BrokenNvml, FakeNvml

from loadtune.host import choose_device, read_host, read_telemetry
from loadtune.host.gpu_probes import OFTEN, SELDOM, Gpm, GpuFigures, GpuOthers
from loadtune.host.sensing import Count, Missing
from loadtune.host.telemetry import Paced, Sampler, machine_probes
from loadtune.records.facts import Device
from loadtune.records.telemetry import Telemetry

POWER, SM_ACTIVITY = "nvmlDeviceGetPowerUsage", "gpu_sm_activity_fraction"


@pytest.mark.parametrize(
    ("library", "uuid", "words"),
    [
        (None, UUIDS[0], "no NVIDIA driver answers"),
        (FakeNvml(), "GPU-not-there", "the GPU does not answer"),
        (FakeNvml(refusing=(POWER,)), UUIDS[0], "not supported by this GPU"),
        (FakeNvml(refusing=(POWER,), error=4), UUIDS[0], "no permission"),
        (FakeNvml(refusing=(POWER,), error=13), UUIDS[0], "the driver is too old"),
        (FakeNvml(refusing=(POWER,), error=999), UUIDS[0], "999"),
        (BrokenNvml(), UUIDS[0], "the library is from another driver"),
    ],
)
def test_a_refusal_has_its_reason_in_words(gpu, library, uuid, words):
    answer = gpu(library, uuid).ask(POWER)
    assert answer.value is None
    assert words in answer.reason


def test_a_question_that_hangs_in_the_driver_leaves_the_others_a_reason(gpu):
    asked, answered = threading.Event(), threading.Event()

    def hangs(handle):
        asked.set()
        return answered.wait(60.0)

    device = gpu(FakeNvml(nvmlDeviceGetPowerUsage=hangs), patience_s=0.05)
    hanging = threading.Thread(target=device.ask, args=(POWER,))
    hanging.start()
    try:
        assert asked.wait(60.0)
        assert device.nvml.attempt("nvmlDeviceGetCount").reason == "the NVIDIA driver hangs"
    finally:
        answered.set()
        hanging.join()
    assert device.nvml.ask("nvmlDeviceGetCount") == len(UUIDS)


def test_a_driver_that_raises_on_every_call_leaves_a_reason_for_each_figure(gpu):
    """The whole sampler over it: nothing raises, everything else is read."""
    device = Device(kind="cuda", uuid=UUIDS[0], name="H200")
    probes = machine_probes(device, lambda: None, 2, gpu(BrokenNvml()).nvml)
    sampler = Sampler(device, lambda: None, 2, probes=probes)
    for _ in range(2):
        sampler.sample(everything=True)
    sampler.close()
    seen = sampler.between(0.0, time.monotonic())
    assert seen.ram_used_bytes > 0
    of_the_gpu = {figure for each in probes for figure in each.probe.figures if figure.startswith("gpu_")}
    assert of_the_gpu <= set(seen.missing)
    assert all(getattr(seen, figure) is None and seen.missing[figure] for figure in of_the_gpu)


def test_what_nvml_tells_of_a_moment_is_in_bytes_watts_joules_and_hz(gpu):
    clocks = {pynvml.NVML_CLOCK_SM: 1980}
    library = FakeNvml(
        nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind], nvmlDeviceGetTotalEnergyConsumption=5_000
    )
    assert GpuFigures(gpu(library), (*OFTEN, *SELDOM)).look(0.0) == {
        "gpu_utilization_fraction": 0.25,
        "gpu_energy_j": Count(5.0),
        "gpu_memory_used_bytes": 300,  # all but what is free
        "gpu_power_w": 350.0,
        "gpu_sm_clock_hz": 1.98e9,
    }


@pytest.fixture
def namespace(tmp_path):
    """Says whether process ids are the driver's."""
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    return link


def sample_of(pid, percent, stamp_us=1):
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=stamp_us)


def test_what_others_take(gpu, namespace):
    # stamp, then who used how much until then
    delivered = iter([[sample_of(9, 99, 5)], [sample_of(9, 20, 6), sample_of(812, 60, 6), sample_of(9, 99, 5)]])
    library = FakeNvml(nvmlDeviceGetProcessUtilization=lambda handle, after_us: next(delivered))
    probe = GpuOthers(gpu(library), lambda: {812}, namespace)
    assert probe.look(0.0) == {"gpu_others_sm_fraction": None}
    assert probe.look(1.0)["gpu_others_sm_fraction"] == pytest.approx(0.2)


def test_nobody_since_the_last_look_is_a_measured_zero(gpu, namespace):
    library = FakeNvml(refusing=("nvmlDeviceGetProcessUtilization",), error=NOT_FOUND)
    probe = GpuOthers(gpu(library), lambda: {812, 813}, namespace)
    probe.look(0.0)
    assert probe.look(1.0) == {"gpu_others_sm_fraction": 0.0}


def test_process_ids_in_a_container_are_not_compared(gpu, tmp_path):
    (tmp_path / "pid").symlink_to("pid:[4026532281]")
    seen = GpuOthers(gpu(FakeNvml()), lambda: set(), tmp_path / "pid").look(0.0)
    assert set(seen.values()) == {Missing("in a container process ids are not the driver's")}


class Counters:
    """A GPU that supports GPM, in the binding's own structures."""

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


def test_performance_counters_are_of_the_time_between_two_looks(gpu):
    counters = Counters(SM_UTIL=61.5)
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    assert probe.look(0.0) == {SM_ACTIVITY: None}
    assert probe.look(0.5) == {SM_ACTIVITY: pytest.approx(0.615)}
    probe.look(1.0)
    first, second = counters.between
    assert first == second[::-1]  # the later sample of one look is the earlier of the next


@pytest.mark.parametrize(
    ("counters", "figure"),
    [(Counters(), Missing("NVML's error 3 for this counter")), (Counters(SM_UTIL=float("nan")), None)],
    ids=["refused", "nothing counted"],
)
def test_a_counter_that_tells_nothing_is_no_figure(gpu, counters, figure):
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    probe.look(0.0)
    assert probe.look(0.5) == {SM_ACTIVITY: figure}


def test_buffers_are_given_back_and_taken_anew(gpu):
    counters = Counters(SM_UTIL=1.0)
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    probe.look(0.0)
    probe.close()
    assert sorted(counters.freed) == counters.allocated
    assert probe.look(0.5) == {SM_ACTIVITY: None}  # no difference across the gap
    assert probe.look(1.0)[SM_ACTIVITY] == pytest.approx(0.01)
    probe.close()
    assert sorted(counters.freed) == counters.allocated
    assert len(counters.allocated) == 4


def test_two_looks_are_enough_for_performance_counters(gpu):
    counters, times = Counters(SM_UTIL=50.0), iter(range(100))
    device = Device(kind="cuda", uuid=UUIDS[0], name="H200")
    probes = (Paced(Gpm(gpu(FakeNvml(**counters.answers())))),)
    sampler = Sampler(device, lambda: None, 2, probes=probes, now=lambda: float(next(times)))
    for _ in range(2):
        sampler.sample()
    assert sampler.between(0.0, 100.0).gpu_sm_activity_fraction == 0.5


def test_a_gpu_before_hopper_is_asked_once_and_has_its_reason(gpu):
    library = FakeNvml(nvmlGpmQueryDeviceSupport=SimpleNamespace(isSupportedDevice=0))
    probe = Gpm(gpu(library))
    for now_s in (0.0, 0.5):
        assert "Hopper" in probe.look(now_s)[SM_ACTIVITY]
    assert library.calls.count("nvmlGpmQueryDeviceSupport") == 1


@pytest.mark.gpu
def test_a_real_gpu_gives_every_figure_or_its_reason():
    """Idle as well as busy: what is printed is what this driver and this chip can tell."""
    host = read_host()
    device = choose_device(host, "cuda")
    seen = read_telemetry(device, host.num_usable_cores)
    of_the_gpu = [name for name in Telemetry.__dataclass_fields__ if name.startswith("gpu_")]
    known = {name: getattr(seen, name) for name in of_the_gpu if getattr(seen, name) is not None}
    print(known, seen.missing)
    assert set(of_the_gpu) == set(known) | (set(seen.missing) & set(of_the_gpu))
    assert all(0 <= value <= 1 for name, value in known.items() if name.endswith("_fraction"))
    assert known["gpu_memory_used_bytes"] > 0
    assert seen.gpu_energy_j is None or seen.gpu_energy_j > 0
