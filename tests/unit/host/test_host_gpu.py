"""NVML behind its one door: a fake library, a broken one, none at all; which GPUs are visible, and what they do."""

import sys
import threading
import time
from ctypes import POINTER, c_void_p, cast
from types import SimpleNamespace

import pynvml
import pytest

from loadtune.host.gpu import (
    PATIENCE_S,
    Gpm,
    GpuBusy,
    GpuOthers,
    NoAnswerError,
    Nvml,
    NvmlDevice,
    gpu_use,
    read_gpus,
    visible_uuids,
)
from loadtune.host.machine import choose_device, machine_probes, read_host, read_telemetry
from loadtune.host.telemetry import Sampler
from loadtune.records.facts import Device, GpuProcess
from loadtune.records.measurement import Telemetry

UUIDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3")
MIG = "MIG-5d0c"
NOT_SUPPORTED, NOT_FOUND = 3, 6
DUTY, SM_ACTIVITY = "nvmlDeviceGetUtilizationRates", "gpu_sm_activity_fraction"


class FakeNvmlError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


class FakeNvml:
    """GPUs whose handles are their UUIDs. ``refusing`` names functions that are not supported here.

    ``answers`` maps a function to what it returns, or to a callable that gets its arguments.
    """

    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t

    def __init__(self, refusing=(), error=NOT_SUPPORTED, **answers):
        self.refusing, self.error, self.answers = refusing, error, answers

    def __getattribute__(self, name):
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        if name in self.refusing:
            raise FakeNvmlError(self.error)
        if name in self.answers:
            answer = self.answers[name]
            return answer if callable(answer) else lambda *args: answer
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        return None

    def nvmlSystemGetDriverVersion(self):
        return "580.95"

    def nvmlDeviceGetCount(self):
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index):
        return UUIDS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in (*UUIDS, MIG):
            raise FakeNvmlError(NOT_FOUND)
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return UUIDS[2]

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetIndex(self, handle):
        return UUIDS.index(handle)

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle, version):
        return SimpleNamespace(version=version, total=1000, reserved=40, free=700, used=260)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        small = SimpleNamespace(pid=813, usedGpuMemory=60)
        return [small, SimpleNamespace(pid=812, usedGpuMemory=200)] if handle == UUIDS[0] else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return [SimpleNamespace(pid=812, usedGpuMemory=200), SimpleNamespace(pid=9, usedGpuMemory=None)]

    def nvmlSystemGetProcessName(self, pid):
        names = {812: "/opt/conda/bin/python3", 813: "/opt/Browser/chrome --type=gpu"}
        if pid not in names:
            raise FakeNvmlError(NOT_FOUND)
        return names[pid]

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == MIG:
            raise FakeNvmlError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=25, memory=5)


class BrokenNvml:
    """Opens, then fails on every call, and not even with its own error."""

    def nvmlInit(self):
        return None

    def __getattr__(self, name):
        def fail(*args):
            raise OSError(f"{name}: the library is from another driver")

        return fail


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
    integrated, *_ = read_gpus(gpu(FakeNvml(refusing=("nvmlDeviceGetMemoryInfo",))).nvml)
    assert 0 < integrated.free_bytes <= integrated.total_bytes  # the machine's


def test_visible_gpus_keep_cudas_order_and_a_mig_instance_its_name(gpu, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"1,GPU-aaaa,{MIG}")
    gpus = read_gpus(gpu(FakeNvml()).nvml)
    assert [(g.uuid, g.index, g.utilization_fraction) for g in gpus] == [
        (UUIDS[1], 1, 0.25), (UUIDS[0], 0, 0.25), (MIG, 2, None)
    ]  # fmt: skip


@pytest.mark.parametrize("library", [None, FakeNvml(refusing=("nvmlInit",)), BrokenNvml()])
def test_a_missing_or_broken_driver_answers_none(gpu, library):
    nvml = gpu(library).nvml  # None in sys.modules makes the import itself fail
    assert read_gpus(nvml) == ()
    assert nvml.value("nvmlSystemGetDriverVersion") is None


@pytest.mark.parametrize(
    ("variable", "positions"),
    [
        (None, [0, 1, 2]),
        ("", []),
        (" 2 , 0 ", [2, 0]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("0,0", []),
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
        (FakeNvml(refusing=(DUTY,), error=999), UUIDS[0], "999"),
        (BrokenNvml(), UUIDS[0], "the library is from another driver"),
    ],
)
def test_a_refusal_has_its_reason_in_words(gpu, library, uuid, words):
    with pytest.raises(NoAnswerError, match=words):
        gpu(library, uuid).ask(DUTY)


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
        with pytest.raises(NoAnswerError, match="the NVIDIA driver hangs"):
            device.nvml.ask("nvmlDeviceGetCount")
    finally:
        answered.set()
        hanging.join()
    assert device.nvml.value("nvmlDeviceGetCount") == len(UUIDS)


def test_a_driver_that_raises_on_every_call_leaves_a_reason_for_each_figure(gpu):
    """The whole sampler over it: nothing raises, everything else is read."""
    device = Device(kind="cuda", uuid=UUIDS[0], name="H200")
    probes = machine_probes(device, lambda: None, gpu(BrokenNvml()).nvml)
    sampler = Sampler(probes)
    for _ in range(2):
        sampler.sample(everything=True)
    seen = sampler.between(0.0, time.monotonic())
    assert seen.cpu_utilization_fraction is not None
    of_the_gpu = {figure for each in probes for figure in each.figures if figure.startswith("gpu_")}
    assert of_the_gpu <= set(seen.missing)
    assert all(getattr(seen, figure) is None and seen.missing[figure] for figure in of_the_gpu)


@pytest.fixture
def namespace(tmp_path):
    """Says whether process ids are the driver's."""
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    return link


def test_what_the_gpu_does_and_others_take_of_it(gpu, namespace):
    def sample_of(pid, percent, stamp_us):
        return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=stamp_us)

    delivered = iter([[sample_of(9, 99, 5)], [sample_of(9, 20, 6), sample_of(812, 60, 6), sample_of(9, 99, 5)]])
    library = FakeNvml(nvmlDeviceGetProcessUtilization=lambda handle, after_us: next(delivered))
    assert gpu_use(gpu(library)).look() == {"gpu_utilization_fraction": 0.25}
    probe = GpuOthers(gpu(library), lambda: {812}, namespace)
    assert probe.look() == {"gpu_others_sm_fraction": None}
    assert probe.look()["gpu_others_sm_fraction"] == pytest.approx(0.2)


def test_how_busy_it_was_is_the_mean_of_the_drivers_samples_each_taken_once(gpu):
    def sample_of(stamp_us, percent):
        return SimpleNamespace(timeStamp=stamp_us, sampleValue=SimpleNamespace(uiVal=percent))

    delivered = [[sample_of(5, 20)], [], [sample_of(5, 20), sample_of(9, 60), sample_of(7, 70)]]

    def answer(handle, kind, after_us):
        if not (samples := delivered.pop(0)):
            raise FakeNvmlError(NOT_FOUND)
        return 0, samples

    busy = GpuBusy(UUIDS[0], gpu(FakeNvml(nvmlDeviceGetSamples=answer)).nvml)
    assert [busy.look(), busy.look()] == [pytest.approx(0.2), pytest.approx(0.5)]
    for uuid, library in (("GPU-not-there", FakeNvml()), (None, FakeNvml()), (UUIDS[0], BrokenNvml())):
        assert GpuBusy(uuid, gpu(library).nvml).look() is None


def test_nobody_since_the_last_look_is_a_measured_zero_and_a_container_compares_no_process_ids(gpu, namespace):
    library = FakeNvml(refusing=("nvmlDeviceGetProcessUtilization",), error=NOT_FOUND)
    probe = GpuOthers(gpu(library), lambda: {812, 813}, namespace)
    probe.look()
    assert probe.look() == {"gpu_others_sm_fraction": 0.0}
    namespace.unlink()
    namespace.symlink_to("pid:[4026532281]")
    with pytest.raises(NoAnswerError, match="in a container process ids are not the driver's"):
        GpuOthers(gpu(FakeNvml()), lambda: set(), namespace).look()


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


def test_performance_counters_are_of_the_time_between_two_looks_and_buffers_are_given_back(gpu):
    counters = Counters(SM_UTIL=61.5)
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    assert probe.look() == {SM_ACTIVITY: None}
    assert probe.look() == {SM_ACTIVITY: pytest.approx(0.615)}
    probe.look()
    first, second = counters.between
    assert first == second[::-1]  # the later sample of one look is the earlier of the next
    del probe
    assert sorted(counters.freed) == counters.allocated
    assert len(counters.allocated) == 2


def test_a_counter_that_tells_nothing_is_no_figure_and_a_gpu_before_hopper_has_its_reason(gpu):
    counters = Counters()
    probe = Gpm(gpu(FakeNvml(**counters.answers())))
    probe.look()
    with pytest.raises(NoAnswerError, match="NVML's error 3 for this counter"):
        probe.look()
    counters.metrics = Counters(SM_UTIL=float("nan")).metrics
    assert probe.look() == {SM_ACTIVITY: None}
    library = FakeNvml(nvmlGpmQueryDeviceSupport=SimpleNamespace(isSupportedDevice=0))
    with pytest.raises(NoAnswerError, match="Hopper"):
        Gpm(gpu(library)).look()


@pytest.mark.gpu
def test_a_real_gpu_gives_every_figure_or_its_reason():
    """Idle as well as busy: what is printed is what this driver and this chip can tell."""
    host = read_host()
    assert host.driver
    for found in host.gpus:
        assert 0 < found.free_bytes <= found.total_bytes
        assert 0 <= (found.driver_bytes or 0) <= found.total_bytes - found.free_bytes
    device = choose_device(host, "cuda")
    seen = read_telemetry(device)
    of_the_gpu = [name for name in Telemetry.__dataclass_fields__ if name.startswith("gpu_")]
    known = {name: getattr(seen, name) for name in of_the_gpu if getattr(seen, name) is not None}
    print(known, seen.missing)
    assert set(of_the_gpu) == set(known) | (set(seen.missing) & set(of_the_gpu))
    assert all(0 <= value <= 1 for name, value in known.items() if name.endswith("_fraction"))
