"""Before a run for samples per joule: can the energy be read at all?"""

from collections.abc import Callable

from loadtune.errors import DeviceError
from loadtune.records import Device, Telemetry

ENERGY = "gpu_energy_j"


def check_energy(device: Device, seen: Callable[[], Telemetry]) -> None:
    """Raise DeviceError where the GPU's energy counter cannot be read. `seen` is what can be had of the machine now."""
    if device.kind != "cuda":
        _refuse(f"{device.name} is not a GPU")
    telemetry = seen()
    if telemetry.gpu_energy_j is None:
        _refuse(
            f"{device.name} has none that can be read: {telemetry.missing.get(ENERGY, 'the driver does not say why')}"
        )


def _refuse(why: str) -> None:
    raise DeviceError(
        f"--objective samples-per-joule needs the energy counter of a GPU, but {why.rstrip('.')}. NVIDIA GPUs since "
        "Volta have one. Choose such a GPU with --device, or leave --objective out."
    )
