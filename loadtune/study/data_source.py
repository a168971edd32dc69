"""Where samples came from: storage, or the page cache. Pure, over what the machine did in each run."""

from collections.abc import Iterable

from loadtune.records import Measurement
from loadtune.units import bytes_text, percent_text

_LEAST_BYTES, _LEAST_SHARE = 1024, 0.01
"""For each sample, and of its size: less is messages between processes, and says nothing of samples."""


def data_source(measured: Iterable[Measurement], sample_bytes: int) -> str | None:
    """What to say. None: not known, or little was read from files: samples are made, in memory, or in mapped files."""
    num_samples = read = fetched = 0.0
    for run in measured:
        seen = run.telemetry
        if seen is None or seen.file_read_bytes_per_s is None or seen.disk_read_bytes_per_s is None:
            continue
        num_samples += run.samples_per_s * seen.seconds
        read += seen.file_read_bytes_per_s * seen.seconds
        fetched += seen.disk_read_bytes_per_s * seen.seconds
    if not num_samples or read < max(_LEAST_BYTES, _LEAST_SHARE * sample_bytes) * num_samples:
        return None
    share = min(1.0, fetched / read)
    found = f"{percent_text(share)} of the {bytes_text(read)} that were read came from storage"
    if share < 0.5:
        return (
            f"Samples were read from the page cache: {found}. The first epoch after a reboot reads them from storage "
            "and may be slower."
        )
    return f"Samples were read from storage: {found}. An epoch that finds them in the page cache may be faster."
