"""Which device is taken, and what an error says; what is asked of the machine once."""

import subprocess
import sys
from dataclasses import replace

import pytest

from loadtune.errors import DeviceError
from loadtune.host import choose_device, freest_gpu, parse_cuda_version
from loadtune.records.facts import Device, GpuFacts
from loadtune.testing import fake_host


def make_gpu(uuid, free_bytes=100_000, utilization=0.0):
    return GpuFacts(
        uuid=uuid, index=0, name="H200", total_bytes=141_000, free_bytes=free_bytes, utilization_fraction=utilization
    )


def make_host(*gpus, cpu_name="EPYC", driver="580"):
    return replace(fake_host(num_gpus=0), gpus=gpus, cpu_name=cpu_name, driver=driver)


A, B = make_gpu("GPU-a1", free_bytes=50_000), make_gpu("GPU-a2", free_bytes=90_000)
TWO = make_host(A, B)


@pytest.mark.parametrize(
    ("requested", "uuid"),
    [(None, "GPU-a2"), ("CUDA ", "GPU-a2"), ("cuda:0", "GPU-a1"), ("cuda:1", "GPU-a2"), ("gpu-A2", "GPU-a2")],
)
def test_the_gpu_asked_for_is_taken(requested, uuid):
    assert choose_device(TWO, requested) == Device(kind="cuda", uuid=uuid, name="H200")


@pytest.mark.parametrize(("host", "requested"), [(TWO, "cpu"), (make_host(), "cpu"), (make_host(), None)])
def test_the_cpu_is_taken_when_asked_for_or_all_there_is(host, requested):
    assert choose_device(host, requested) == Device(kind="cpu", name="EPYC")


@pytest.mark.parametrize(
    "requested", ["cuda:2", "cuda:-1", "cuda:", "cuda:x", "GPU-b", "GPU-a", "GPU-", "tpu", "", "0"]
)
def test_what_is_not_there_is_refused_with_what_is(requested):
    with pytest.raises(DeviceError) as refused:
        choose_device(TWO, requested)
    message = str(refused.value)
    assert repr(requested) in message
    assert "GPU-a1" in message
    assert "cuda:1 is H200" in message


def test_a_whole_uuid_is_never_ambiguous():
    host = make_host(make_gpu("GPU-a"), make_gpu("GPU-ab"))
    assert choose_device(host, "GPU-a").uuid == "GPU-a"


@pytest.mark.parametrize("requested", ["cuda", "cuda:0", "GPU-a1"])
def test_without_gpus_the_error_says_whether_a_driver_answered(requested):
    with pytest.raises(DeviceError, match="No NVIDIA driver answered"):
        choose_device(make_host(driver=None), requested)
    with pytest.raises(DeviceError, match=r"no GPU is visible.*CUDA_VISIBLE_DEVICES"):
        choose_device(make_host(), requested)


@pytest.mark.parametrize(
    ("gpus", "freest"),
    [
        ([make_gpu("GPU-0", 100_000, 0.9), make_gpu("GPU-1", 99_500, 0.1)], "GPU-1"),  # within 1%: the idle one
        ([make_gpu("GPU-0", 100_000, 0.9), make_gpu("GPU-1", 98_000, 0.1)], "GPU-0"),  # memory comes first
        ([make_gpu("GPU-0", utilization=None), make_gpu("GPU-1", utilization=0.8)], "GPU-1"),
        ([make_gpu("GPU-0"), make_gpu("GPU-1")], "GPU-0"),
        ([make_gpu("GPU-0", utilization=None)], "GPU-0"),
    ],
)
def test_the_freest_gpu(gpus, freest):
    assert freest_gpu(make_host(*gpus)).uuid == freest


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ('cuda = "12.8"\n', "12.8"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", None),
    ],
)
def test_the_cuda_version_is_read_from_text(text, cuda):
    assert parse_cuda_version(text) == cuda


def test_importing_and_reading_the_host_imports_no_torch():
    code = (
        "import sys, loadtune.host as host\n"
        "early = {'torch', 'optuna', 'pynvml', 'psutil'} & set(sys.modules)\n"
        "host.read_host()\n"
        "print(sorted(early | ({'torch', 'optuna'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
