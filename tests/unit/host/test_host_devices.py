"""Which device is taken, and what an error says; what is asked of the machine once."""

from dataclasses import replace

import pytest
from fakes import fake_host

from loadtune.errors import DeviceError
from loadtune.host.machine import choose_device, freest_gpu, parse_torch_versions
from loadtune.records.facts import Device, GpuFacts


def make_gpu(uuid, free_bytes=100_000, utilization=0.0):
    return GpuFacts(
        uuid=uuid, index=0, name="H200", total_bytes=141_000, free_bytes=free_bytes, utilization_fraction=utilization
    )


def make_host(*gpus, driver="580"):
    return replace(fake_host(num_gpus=0), gpus=gpus, cpu_name="EPYC", driver=driver)


TWO = make_host(make_gpu("GPU-a1", free_bytes=50_000), make_gpu("GPU-a2", free_bytes=90_000))


@pytest.mark.parametrize(
    ("requested", "uuid"), [(None, "GPU-a2"), ("CUDA ", "GPU-a2"), ("cuda:0", "GPU-a1"), ("gpu-A2", "GPU-a2")]
)
def test_the_device_asked_for_is_taken(requested, uuid):
    assert choose_device(TWO, requested) == Device(kind="cuda", uuid=uuid, name="H200")
    for host, cpu in ((TWO, "cpu"), (make_host(), None)):
        assert choose_device(host, cpu) == Device(kind="cpu", name="EPYC")
    similar = make_host(make_gpu("GPU-a"), make_gpu("GPU-ab"))
    assert choose_device(similar, "GPU-a").uuid == "GPU-a", "a whole UUID is never ambiguous"


@pytest.mark.parametrize("requested", ["cuda:2", "cuda:-1", "cuda:", "cuda:x", "GPU-b", "GPU-a", "tpu", ""])
def test_what_is_not_there_is_refused_with_what_is(requested):
    with pytest.raises(DeviceError) as refused:
        choose_device(TWO, requested)
    message = str(refused.value)
    assert repr(requested) in message
    assert "GPU-a1" in message
    assert "cuda:1 is H200" in message


def test_without_gpus_the_error_says_whether_a_driver_answered():
    with pytest.raises(DeviceError, match="No NVIDIA driver answered"):
        choose_device(make_host(driver=None), "cuda")
    with pytest.raises(DeviceError, match=r"no GPU is visible.*CUDA_VISIBLE_DEVICES"):
        choose_device(make_host(), "GPU-a1")


@pytest.mark.parametrize(
    ("gpus", "freest"),
    [
        ([make_gpu("GPU-0", 100_000, 0.9), make_gpu("GPU-1", 99_500, 0.1)], "GPU-1"),  # within 1%: the idle one
        ([make_gpu("GPU-0", 100_000, 0.9), make_gpu("GPU-1", 98_000, 0.1)], "GPU-0"),  # memory comes first
        ([make_gpu("GPU-0", utilization=None), make_gpu("GPU-1", utilization=0.8)], "GPU-1"),
        ([make_gpu("GPU-0"), make_gpu("GPU-1")], "GPU-0"),
    ],
)
def test_the_freest_gpu(gpus, freest):
    assert freest_gpu(make_host(*gpus)).uuid == freest


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", ("2.11.0", "13.0")),
        ('cuda = "12.8"\n', (None, "12.8")),
        ("__version__ = '2.12'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", ("2.12", None)),
    ],
)
def test_the_versions_of_torch_and_cuda_are_read_from_text(text, versions):
    assert parse_torch_versions(text) == versions
