"""Continues a run that was cut short, or extends one that had ended.

In: what the run had found. Out: the run as it was then. A study never mixes machines, versions, workloads or search
spaces: a difference is named, and nothing is measured.
"""

from dataclasses import asdict, fields, replace

from loadtune.errors import ResultError
from loadtune.records.config import TuneConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.run import Resumable, Run
from loadtune.search.baseline import with_facts
from loadtune.units import bytes_text, counted

_MAY_DIFFER = {"num_trials", "time_budget_s", "out", "device", "remedies"}
"""Of a TuneConfig: how long, where to, and what is tried on the answer; the device is compared as it was chosen."""

_OF_THE_MACHINE = ("cpu_name", "num_usable_cores", "num_listed_cores", "torch", "cuda")
"""Not the hostname, which is another with each start of a container; RAM, Python and driver are compared apart."""

_SAME_RAM = 0.05
"""Share by which the RAM of one machine may shrink: a kernel keeps a little for itself, another one a little more.
Virtual machines grow, 31 GiB to 256 was seen."""

_RESUMED = "This run was resumed"

_OF_THE_WORKLOAD = ("dataset_length", "input_shape", "input_dtype", "num_classes", "num_parameters", "precisions")


def restore(kept: Resumable, run: Run) -> None:
    """Put what was found before into `run`. Raises ResultError where this is not the same machine or the same job.

    What had ended goes on where more trials or time are given now.
    """
    _refuse_if(_differences(kept, run))
    for each in fields(Resumable):
        if each.kw_only:  # the others are of this part
            setattr(run, each.name, getattr(kept, each.name))
    run.is_resumed = True
    if not (run.searched and run.searched.covers(run.config)):
        run.searched = None
    if run.config.time_budget_s > (run.concluded_s or 0.0):
        run.concluded_s = None
    run.notes = [note for note in run.early_notes if not note.startswith(_RESUMED)]  # once, of the last time
    before = counted(len(kept.trials), "trial")
    run.note(f"{_RESUMED}, with {before} measured before. The time taken is that of this part alone.")


def check_same_workload(then: WorkloadFacts, now: WorkloadFacts) -> None:
    """Raise ResultError where dataset or model are not what was measured before."""
    differences = _unlike(then, now, _OF_THE_WORKLOAD)
    if then.torchvision is not None and now.torchvision is not None:  # None: it was not looked at then
        differences += _unlike(then, now, ("torchvision",))
    code = {part.name: part.sha256 for part in then.code}
    # What is there once alone is no difference: whatever uses it differs too, or it is not used.
    changed = [part.name for part in now.code if code.get(part.name, part.sha256) != part.sha256]
    if changed:
        differences.append(f"the code of the workload has changed ({', '.join(changed)})")
    _refuse_if(differences)


def _differences(kept: Resumable, run: Run) -> list[str]:
    found = [f"loadtune was {kept.version!r} and is {run.version!r}"] if kept.version != run.version else []
    found += _unlike(kept.device, run.device, ("kind", "uuid", "name"))
    found += _of_another_machine(kept.host, run.host, run.device)
    then, now = kept.config, run.config
    if kept.facts is not None:  # of a loader's own settings some may be given now
        then, now = (replace(each, yours=with_facts(each.yours, kept.facts)) for each in (then, now))
    names = tuple(field.name for field in fields(TuneConfig) if field.name not in {*_MAY_DIFFER, "workload", "yours"})
    found += _unlike(then.workload, now.workload, tuple(asdict(now.workload)))
    found += _unlike(then.yours, now.yours, tuple(asdict(now.yours))) + _unlike(then, now, names)
    return list(dict.fromkeys(found))  # a seed is the search's and the workload's


def _of_another_machine(then: HostFacts, now: HostFacts, device: Device) -> list[str]:
    """A driver counts where it is used, a Python by what it is called: 3.12.4 mends 3.12.3."""
    found = _unlike(then, now, _OF_THE_MACHINE + (("driver",) if device.kind == "cuda" else ()))
    pythons = [host.python.rpartition(".")[0] for host in (then, now)]
    if pythons[0] != pythons[1]:
        found.append(f"python was {then.python!r} and is {now.python!r}")
    ram = [host.ram_total_bytes for host in (then, now)]
    if ram[0] - ram[1] > _SAME_RAM * ram[0]:
        found.append(f"the RAM was {bytes_text(ram[0])} and is {bytes_text(ram[1])}")
    return found


def _unlike(then: object, now: object, names: tuple[str, ...]) -> list[str]:
    """What is not the same, each as ``name: then, now``."""
    pairs = {name: (getattr(then, name), getattr(now, name)) for name in names}
    return [f"{name} was {before!r} and is {here!r}" for name, (before, here) in pairs.items() if before != here]


def _refuse_if(differences: list[str]) -> None:
    if differences:
        raise ResultError(
            f"That run cannot be resumed here: {'; '.join(differences)}. A run must stay on one machine, one version"
            " and one workload. Run without --resume."
        )
