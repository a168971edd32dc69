"""Memory that grows with each sample, and where samples came from: said once the run is over, however it ended."""

from loadtune.bench.short_ram import GROWTH_ADVICE
from loadtune.findings import Findings
from loadtune.records import Measurement, TrialConfig, TrialFailure
from loadtune.study.data_source import data_source
from loadtune.study.memory_growth import MemoryGrowth, memory_growth
from loadtune.units import bytes_text, count_text, counted, seconds_text


def tell_growth(found: Findings) -> None:
    """A note where memory grows, from what was measured; else from a trial that was ended for it."""
    timed = _timed(found)
    length, ram = found.facts.dataset_length if found.facts else None, found.host.ram_limit_bytes
    fits = (memory_growth(timed, of_workers=of_workers) for of_workers in (True, False))
    grown = [fit for fit in fits if fit is not None and fit.matters(length, ram)]
    if grown:  # the same dataset: where it keeps objects in workers, it keeps them without workers too
        found.note(_sentence(found, grown[0], length))
        return
    ended = [failure for failure in _failures(found) if failure.grown_bytes is not None]
    worst = max(ended, key=lambda failure: failure.grown_bytes or 0, default=None)
    if worst is not None:
        found.note(worst.message)


def tell_source(found: Findings) -> None:
    """A note where samples were read from files."""
    sample_bytes = found.facts.sample_bytes if found.facts else 0
    said = data_source((measured for _, measured in _timed(found)), sample_bytes)
    if said is not None:
        found.note(said)


def _timed(found: Findings) -> list[tuple[TrialConfig, Measurement]]:
    trials = [(trial.config, trial.measurement) for trial in found.trials if trial.measurement]
    return trials + [(finalist.config, run) for finalist in found.finalists for run in finalist.runs]


def _failures(found: Findings) -> list[TrialFailure]:
    trials = [trial.failure for trial in found.trials if trial.failure]
    return trials + [failure for finalist in found.finalists for failure in finalist.failures]


def _sentence(found: Findings, fit: MemoryGrowth, length: int | None) -> str:
    who = "the workers" if fit.of_workers else "the training process"
    seen = [measured.telemetry for _, measured in _timed(found) if measured.telemetry]
    peak = max((telemetry.ram_used_bytes or 0 for telemetry in seen), default=0)
    reached = f" RAM in use reached {bytes_text(peak)} of {bytes_text(found.host.ram_limit_bytes)}." if peak else ""
    low, high = (fit.bytes_per_sample + sign * fit.half_width_bytes for sign in (-1, 1))
    return (
        f"The memory of {who} grows with each sample loaded, by {bytes_text(fit.bytes_per_sample)} (95% interval "
        f"{bytes_text(low)} to {bytes_text(high)}).{reached} {_full_text(found, fit, length)} {GROWTH_ADVICE}"
    )


def _full_text(found: Findings, fit: MemoryGrowth, length: int | None) -> str:
    """When RAM is full: within the first epoch, or in a later one if the growth goes on from epoch to epoch.

    `length` None: a stream that does not tell. Nothing is said of its epochs.
    """
    samples = int(found.host.ram_available_bytes / fit.bytes_per_sample)
    rates = [measured.samples_per_s for _, measured in _timed(found)]
    rate = found.best.samples_per_s if found.best else max(rates)
    when = f"{count_text(samples)} samples, {seconds_text(samples / rate)} at {rate:,.0f} samples/s"
    if length is None or samples <= length:
        return f"The {bytes_text(found.host.ram_available_bytes)} available at the start are full after {when}."
    epochs = counted(max(1, samples // length), "epoch")
    kept = " if persistent_workers=True keeps the workers" if fit.of_workers else ""
    return (
        f"One epoch takes {bytes_text(fit.bytes_per_sample * length)}. The "
        f"{bytes_text(found.host.ram_available_bytes)} available at the start are full after {epochs}{kept} ({when})."
    )
