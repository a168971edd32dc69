"""Which device the training runs on: what was asked for, or the best of what is there. Pure, over `HostFacts`."""

import math

from loadtune.errors import DeviceError
from loadtune.host.gpu import matching
from loadtune.records import Device, GpuFacts, HostFacts
from loadtune.units import bytes_text, percent_text

FREE_TIE_FRACTION = 0.01
"""Free memory this close counts as equal, so that utilization decides: 1% of the batch size is less than a memory
ceiling is known to (0.975 to 1.00 of the truth), while a busy GPU can cost half the throughput."""


def choose_device(host: HostFacts, requested: str | None) -> Device:
    """``requested``: None, ``cpu``, ``cuda``, ``cuda:N`` (N among the visible GPUs), or a UUID or its beginning.

    None takes the freest GPU, else the CPU. Raises DeviceError where the GPU asked for is not there.
    """
    wanted = "" if requested is None else requested.strip().lower()
    if wanted == "cpu" or (requested is None and not host.gpus):
        return Device(kind="cpu", name=host.cpu_name or "CPU")
    if requested is None or wanted == "cuda":
        return _cuda(freest_gpu(host))
    if wanted.startswith("cuda:"):
        number = wanted.removeprefix("cuda:")
        if not number.isdecimal() or int(number) >= len(host.gpus):
            raise _refusal(host, f"--device is {requested!r}, which this machine does not have.")
        return _cuda(host.gpus[int(number)])
    if wanted.startswith(("gpu-", "mig-")):
        return _cuda(_named(host, requested, wanted))
    raise _refusal(host, f"--device is {requested!r}, which is not a device name.")


def freest_gpu(host: HostFacts) -> GpuFacts:
    """Most free memory, then least utilization, then CUDA's order. Raises DeviceError where there is no GPU."""
    if not host.gpus:
        raise _refusal(host, "This machine has no GPU that can be used.")
    enough = max(gpu.free_bytes for gpu in host.gpus) * (1 - FREE_TIE_FRACTION)
    free = (gpu for gpu in host.gpus if gpu.free_bytes >= enough)
    # One that does not say how busy it is comes after those that do.
    return min(free, key=lambda gpu: math.inf if gpu.utilization_fraction is None else gpu.utilization_fraction)


def _named(host: HostFacts, requested: str, wanted: str) -> GpuFacts:
    uuids = matching(wanted, [gpu.uuid for gpu in host.gpus])
    if len(uuids) != 1:
        problem = f"matches {len(uuids)} GPUs" if uuids else "this machine does not have"
        raise _refusal(host, f"--device is {requested!r}, which {problem}.")
    return next(gpu for gpu in host.gpus if gpu.uuid == uuids[0])


def _cuda(gpu: GpuFacts) -> Device:
    return Device(kind="cuda", uuid=gpu.uuid, name=gpu.name)


def _refusal(host: HostFacts, problem: str) -> DeviceError:
    """With what there is and what may be asked for, so that it can be mended without another command."""
    if host.gpus:
        lines = (
            f"cuda:{number} is {gpu.name} ({gpu.uuid}, {bytes_text(gpu.free_bytes)} free, "
            f"{percent_text(gpu.utilization_fraction)} busy)"
            for number, gpu in enumerate(host.gpus)
        )
        last = len(host.gpus) - 1
        numbered = "cuda:0" if last == 0 else f"cuda:0 to cuda:{last}"
        return DeviceError(
            f"{problem} Visible GPUs: {'; '.join(lines)}. Ask for cpu, cuda, {numbered}, or enough of a UUID to tell "
            "one GPU with --device; without it the freest GPU is taken."
        )
    found = "No NVIDIA driver answered on this machine."
    if host.driver is not None:
        found = f"The NVIDIA driver ({host.driver}) is there, but no GPU is visible to this process."
    return DeviceError(
        f"{problem} {found} Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU: --device cpu, or no --device at "
        "all."
    )
