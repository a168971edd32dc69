"""Going on with a run that was ended, or extending one that had come to its end.

In: what was left before in the run's folder. Out: `Findings` as they were then. A study never mixes machines,
workloads or spaces: what differs is named, and nothing is measured.
"""

from dataclasses import asdict, fields

from loadtune.errors import ResultError
from loadtune.findings import Findings
from loadtune.records import Device, HostFacts, TuneConfig, WorkloadFacts
from loadtune.report.journal import Kept

_MAY_DIFFER = {"num_trials", "time_budget_s", "out", "device"}
"""Of a TuneConfig: how long, and where to; the device is compared as it was chosen."""

_OF_THE_MACHINE = ("cpu_name", "num_usable_cores", "torch", "cuda")
_OF_THE_WORKLOAD = ("dataset_length", "input_shape", "input_dtype", "num_classes", "num_parameters", "precisions")


def restore(kept: Kept, found: Findings) -> None:
    """Put what was found before into `found`. Raises ResultError where this is not the same machine or the same job."""
    _refuse_if(_differences(kept, found.config, found.host, found.device))
    probed = kept.probed
    found.facts, found.yours, found.assumed = probed.facts, probed.yours, probed.assumed
    found.recipes, found.ceilings, found.free_bytes = probed.recipes, list(probed.ceilings), probed.free_bytes
    found.compute_points, found.batch_sizes = probed.compute_points + kept.timed, probed.batch_sizes
    found.warm = probed.warm
    found.trials, found.notes = list(kept.trials), list(probed.notes)
    run = sum(trial.screened is None for trial in kept.trials)
    found.note(
        f"This run was resumed: {run} of its trials, and what the probes found before them, are of before that. "
        "What it took is told since then alone."
    )


def check_same_workload(then: WorkloadFacts, now: WorkloadFacts) -> None:
    """Raise ResultError where dataset or model are not what was measured before."""
    _refuse_if(_unlike(then, now, _OF_THE_WORKLOAD))


def _differences(kept: Kept, config: TuneConfig, host: HostFacts, device: Device) -> list[str]:
    head = kept.head
    asked = [field.name for field in fields(TuneConfig) if field.name not in _MAY_DIFFER]
    found = _unlike(head.device, device, ("kind", "uuid", "name")) + _unlike(head.host, host, _OF_THE_MACHINE)
    for name in asked:
        then, now = getattr(head.config, name), getattr(config, name)
        if name in ("workload", "yours"):
            found += _unlike(then, now, tuple(asdict(now)))
        else:
            found += _unlike(head.config, config, (name,))
    return found


def _unlike(then: object, now: object, names: tuple[str, ...]) -> list[str]:
    """What is not the same, each as ``name: then, now``."""
    pairs = {name: (getattr(then, name), getattr(now, name)) for name in names}
    return [f"{name} was {before!r} and is {here!r}" for name, (before, here) in pairs.items() if before != here]


def _refuse_if(differences: list[str]) -> None:
    if differences:
        raise ResultError(
            f"That run cannot be resumed here: {'; '.join(differences)}. A study holds for one machine and one job. "
            "Run without --resume for a new one; --warm-start takes over another run's winner."
        )
