"""What NVML says of a running GPU and in which words it refuses: memory, power, energy, clocks; a real one."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pynvml
import pytest
from nvml_fakes import MIG, UUIDS, BrokenNvml, FakeNvml

from loadtune.host import choose_device, read_host, read_telemetry
from loadtune.host.telemetry import Sampler, machine_probes
from loadtune.records.facts import Device
from loadtune.records.telemetry import Telemetry

OF_THE_DUTY_CYCLE = {"gpu_utilization_p5_fraction", "gpu_utilization_p95_fraction", "gpu_idle_fraction"}


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


def test_threads_ask_the_driver_one_after_the_other(gpu):
    inside = threading.Semaphore(1)

    def alone(handle):
        assert inside.acquire(blocking=False), "two questions at once"
        time.sleep(0.001)
        inside.release()
        return 1000

    device = gpu(FakeNvml(nvmlDeviceGetPowerUsage=alone))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: device.ask("nvmlDeviceGetPowerUsage"), range(40)))
    assert [answer.value for answer in answers] == [1000] * 40


def test_a_question_that_hangs_in_the_driver_leaves_the_others_a_reason(gpu):
    asked, answered = threading.Event(), threading.Event()

    def hangs(handle):
        asked.set()
        return answered.wait(60.0)

    device = gpu(FakeNvml(nvmlDeviceGetPowerUsage=hangs), patience_s=0.05)
    hanging = threading.Thread(target=device.ask, args=("nvmlDeviceGetPowerUsage",))
    hanging.start()
    try:
        assert asked.wait(60.0)
        assert device.nvml.attempt("nvmlDeviceGetCount").reason == "the NVIDIA driver hangs"
        patience_s, device.nvml._patience_s = device.nvml._patience_s, 60.0
        assert device.ask("nvmlDeviceGetPowerUsage").reason == "the NVIDIA driver hangs"  # at once, not after a minute
        device.nvml._patience_s = patience_s
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
    seen = sampler.between(0.0, sampler.latest().at_s)
    assert seen.ram_available_bytes > 0
    of_the_gpu = {figure for each in probes for figure in each.probe.figures if figure.startswith("gpu_")}
    assert of_the_gpu <= set(seen.missing)
    assert all(getattr(seen, figure) is None and seen.missing[figure] for figure in of_the_gpu)


def probe_of(figure, device):
    """The one that a machine with this GPU gets for it."""
    scheduled = machine_probes(Device(kind="cuda", uuid=UUIDS[0], name="H200"), lambda: None, 2, device.nvml)
    return next(each.probe for each in scheduled if figure in each.probe.figures)


def test_what_nvml_tells_of_a_moment_is_in_bytes_watts_and_hz(gpu):
    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}
    device = gpu(FakeNvml(nvmlDeviceGetClockInfo=lambda handle, kind: clocks[kind]))
    seen = {
        "gpu_memory_used_bytes": 300,  # all but what is free
        "gpu_power_w": 350.0,
        "gpu_sm_clock_hz": 1.98e9,
        "gpu_memory_clock_hz": 3.201e9,
    }
    for figure, value in seen.items():
        assert probe_of(figure, device).look(0.0) == {figure: value}


def test_energy_is_the_difference_of_the_drivers_counter(gpu):
    counter = iter([5_000, 12_500, 12_500, 100, 350])  # mJ; then the driver was loaded anew
    device = gpu(FakeNvml(nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counter)))
    probe = probe_of("gpu_energy_j", device)
    assert [probe.look(t)["gpu_energy_j"] for t in (0.0, 1.0, 2.0, 3.0, 4.0)] == [None, 7.5, 0.0, None, 0.25]


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
