"""Continues a run that was cut short.

In: what the run had found. Out: the run as it was then. A study never mixes machines, versions, workloads or search
spaces: a difference is named, and nothing is measured.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace

from loadtune.errors import ResultError
from loadtune.records.facts import WorkloadFacts
from loadtune.report.store import result_in
from loadtune.run import Resumable, Run, read_run
from loadtune.search.baseline import with_facts
from loadtune.units import bytes_text, counted

_MAY_DIFFER = ("num_trials", "time_budget_s", "out", "device", "remedies")
"""Of a TuneConfig: how long, where to, and what is tried on the answer; the device is compared as it was chosen."""

_OF_THE_MACHINE = ("cpu_name", "num_usable_cores", "num_listed_cores", "torch", "cuda")
"""Not the hostname, which is another with each start of a container; RAM, Python and driver are compared apart."""

_OF_THE_WORKLOAD = ("dataset_length", "input_shape", "input_dtype", "num_classes", "num_parameters", "precisions")

_SAME_RAM = 0.05
"""Share by which the RAM of one machine may shrink: a kernel keeps a little for itself, another one a little more.
Virtual machines grow, 31 GiB to 256 was seen."""

_RESUMED = "This run was resumed"


def restore(run: Run) -> None:
    """Put what was found before into `run`. Raises ResultError where that run had ended, or where this is not the same
    machine or the same job."""
    kept = read_run(run.folder)
    if kept.ended:
        raise ResultError(f"The run in {run.folder} went to its end, so nothing is left of it to resume. Run again.")
    differences = _unlike(_identity(kept, kept.facts), _identity(run, kept.facts))
    ram = [each.host.ram_total_bytes for each in (kept, run)]
    if ram[0] - ram[1] > _SAME_RAM * ram[0]:
        differences.append(f"the RAM was {bytes_text(ram[0])} and is {bytes_text(ram[1])}")
    _refuse_if(differences)
    for each in fields(Resumable):
        if each.kw_only:  # the others are of this part
            setattr(run, each.name, getattr(kept, each.name))
    run.earlier = result_in(run.folder)
    run.notes = [note for note in run.early_notes if not note.startswith(_RESUMED)]  # once, of the last time
    before = counted(len(kept.trials) + len(kept.confirmed), "measurement")
    run.notes.append(f"{_RESUMED}, with {before} made before. The time taken is that of this part alone.")
    run.tell(run.notes[-1])


def check_same_workload(then: WorkloadFacts, now: WorkloadFacts) -> None:
    """Raise ResultError where dataset or model are not what was measured before."""
    was_seen = then.torchvision is not None and now.torchvision is not None  # None: the job did not use it
    names = (*_OF_THE_WORKLOAD, *(("torchvision",) if was_seen else ()))
    differences = _unlike(*({name: getattr(facts, name) for name in names} for facts in (then, now)))
    code = {part.name: part.sha256 for part in then.code}
    # What is there once alone is no difference: whatever uses it differs too, or it is not used.
    changed = [part.name for part in now.code if code.get(part.name, part.sha256) != part.sha256]
    if changed:
        differences.append(f"the code of the workload has changed ({', '.join(changed)})")
    _refuse_if(differences)


def _identity(run: Resumable, facts: WorkloadFacts | None) -> dict[str, object]:
    """What has to be the same, by name."""
    host, device, config = run.host, run.device, run.config
    if facts is not None:  # of a loader's own settings some may be given now
        config = replace(config, yours=with_facts(config.yours, facts))
    options = asdict(config)
    return {
        "loadtune": run.version,
        "kind": device.kind,
        "uuid": device.uuid,
        "name": device.name,
        **{name: getattr(host, name) for name in _OF_THE_MACHINE},
        "python": host.python.rpartition(".")[0],  # 3.12.4 mends 3.12.3
        "driver": host.driver if device.kind == "cuda" else None,
        **options.pop("workload"),
        **options.pop("yours"),
        **{name: value for name, value in options.items() if name not in _MAY_DIFFER},
    }


def _unlike(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What is not the same, each as ``name was then and is now``."""
    return [f"{name} was {then[name]!r} and is {value!r}" for name, value in now.items() if then[name] != value]


def _refuse_if(differences: list[str]) -> None:
    if differences:
        raise ResultError(
            f"That run cannot be resumed here: {'; '.join(differences)}. A run must stay on one machine, one version"
            " and one workload. Run without --resume."
        )
