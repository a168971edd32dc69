"""RAM and /dev/shm while something runs: what is used of them, and what is left."""

from loadtune.host.memory import read_ram, read_shm
from loadtune.host.sensing import Look, Missing, Probe


class RamUse(Probe):
    """Under every limit in force."""

    figures = ("ram_available_bytes", "ram_used_bytes", "shm_used_bytes")

    def look(self, now_s: float) -> Look:
        ram, shm = read_ram(), read_shm()
        return {
            "ram_available_bytes": ram.available_bytes,
            "ram_used_bytes": ram.limit_bytes - ram.available_bytes,
            "shm_used_bytes": Missing("the platform has no /dev/shm") if shm is None else shm[0] - shm[1],
        }
