"""NVML behind its one door: a fake library, a broken one, none at all; which GPUs are visible, and what they do."""

import sys
import threading
import time
from ctypes import POINTER, c_void_p, cast
from types import SimpleNamespace

import pynvml
import pytest
from nvml_fakes import MIG, NOT_FOUND, UUIDS, BrokenNvml, FakeNvml

from loadtune.host import choose_device, read_gpus, read_host, read_telemetry
from loadtune.host.gpu import Gpm, GpuOthers, GpuUse, read_driver, visible_uuids
from loadtune.host.nvml import PATIENCE_S, Nvml, NvmlDevice
from loadtune.host.sensing import Missing
from loadtune.host.telemetry import Paced, Sampler, machine_probes
from loadtune.records.facts import Device, GpuProcess
from loadtune.records.telemetry import Telemetry

DUTY, SM_ACTIVITY = "nvmlDeviceGetUtilizationRates", "gpu_sm_activity_fraction"


@pytest.fixture
def gpu(monkeypatch):
    """Give it a fake library, get a device opened over it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(library, uuid=UUIDS[0], patience_s=PATIENCE_S):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return NvmlDevice(uuid, Nvml(patience_s))

    return put


def test_every_installed_gpu_is_read_and_who_holds_its_memory(gpu):
    gpus = read_gpus(gpu(FakeNvml()).nvml)
    assert [(found.uuid, found.index) for found in gpus] == list(zip(UUIDS, range(3), strict=True))
    first = gpus[0]
    assert (first.name, first.total_bytes, first.free_bytes) == ("NVIDIA H200", 1000, 700)
    assert (first.driver_bytes, first.others_bytes, first.utilization_fraction) == (40, 260, 0.25)
    assert first.processes == (
        GpuProcess(pid=812, name="python3", used_bytes=200),  # in two of the driver's lists, counted once
        GpuProcess(pid=813, name="chrome", used_bytes=60),
        GpuProcess(pid=9, name=None, used_bytes=None),
    )


def test_visible_gpus_keep_cudas_order_and_nvmls_index(gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-aaaa")
    gpus = read_gpus(gpu(FakeNvml()).nvml)
    assert [(g.uuid, g.index) for g in gpus] == [(UUIDS[2], 2), (UUIDS[0], 0)]


def test_a_mig_instance_is_read_under_its_own_name(gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIG)
    (instance,) = read_gpus(gpu(FakeNvml()).nvml)
    assert (instance.uuid, instance.index, instance.utilization_fraction) == (MIG, 2, None)


@pytest.mark.parametrize("library", [None, FakeNvml(refusing=("nvmlInit",)), BrokenNvml()])
def test_a_missing_or_broken_driver_answers_none(gpu, library):
    nvml = gpu(library).nvml  # None in sys.modules makes the import itself fail
    assert read_gpus(nvml) == ()
    assert read_driver(nvml) is None


def test_a_gpu_without_memory_of_its_own_has_the_machines(gpu):
    gpus = read_gpus(gpu(FakeNvml(refusing=("nvmlDeviceGetMemoryInfo",))).nvml)
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


@pytest.mark.parametrize(
    ("library", "uuid", "words"),
    [
        (None, UUIDS[0], "no NVIDIA driver answers"),
        (FakeNvml(), "GPU-not-there", "the GPU does not answer"),
        (FakeNvml(refusing=(DUTY,)), UUIDS[0], "not supported by this GPU"),
        (FakeNvml(refusing=(DUTY,), error=4), UUIDS[0], "no permission"),
        (FakeNvml(refusing=(DUTY,), error=13), UUIDS[0], "the driver is too old"),
        (FakeNvml(refusing=(DUTY,), error=999), UUIDS[0], "999"),
        (BrokenNvml(), UUIDS[0], "the library is from another driver"),
    ],
)
def test_a_refusal_has_its_reason_in_words(gpu, library, uuid, words):
    answer = gpu(library, uuid).ask(DUTY)
    assert answer.value is None
    assert words in answer.reason


def test_a_question_that_hangs_in_the_driver_leaves_the_others_a_reason(gpu):
    asked, answered = threading.Event(), threading.Event()

    def hangs(handle):
        asked.set()
        return answered.wait(60.0)

    device = gpu(FakeNvml(nvmlDeviceGetUtilizationRates=hangs), patience_s=0.05)
    hanging = threading.Thread(target=device.ask, args=(DUTY,))
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


def test_what_nvml_tells_of_a_moment_is_a_fraction_and_in_hz(gpu):
    clocks = {pynvml.NVML_CLOCK_SM: 1980}
    library = FakeNvml(nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind])
    assert GpuUse(gpu(library)).look(0.0) == {"gpu_utilization_fraction": 0.25, "gpu_sm_clock_hz": 1.98e9}


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


@pytest.mark.gpu
def test_a_real_gpu_answers():
    gpus = read_gpus()
    assert gpus
    assert read_driver()
    for found in gpus:
        assert 0 < found.free_bytes <= found.total_bytes
        assert 0 <= (found.driver_bytes or 0) <= found.total_bytes - found.free_bytes
        assert 0 <= (found.utilization_fraction or 0.0) <= 1
