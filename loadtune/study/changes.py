"""What is not the same any more: machines, versions, workloads, settings, figures. Pure, over records.

Apart from what is concluded of it, because a comparison of two results and a check of one ask the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields

from loadtune.records import Change, Device, HostFacts, Measurement, Telemetry, TrialConfig, TuningResult, Value

_MACHINE = (
    "hostname",
    "os",
    "cpu_name",
    "num_usable_cores",
    "ram_limit_bytes",
    "shm_total_bytes",
    "python",
    "torch",
    "cuda",
    "driver",
)
_SAME_STEP = (
    "loader",
    "dataset",
    "collate",
    "model",
    "image_size",
    "num_classes",
    "loss",
    "compute_loss",
    "optimizer",
    "step",
    "accumulate",
)
"""Of a `WorkloadSpec`: what makes another training step of it. Where a folder lies, and a seed, do not."""

_SAME_TENSORS = ("input_shape", "input_dtype", "num_classes", "num_parameters")
_OF_A_RUNS_LENGTH = ("seconds", "num_readings", "gpu_energy_j", "num_cpu_throttles", "cpu_throttled_s")
"""Of a `Telemetry`: more where a run took longer, whatever the machine did."""

_VISIBLE = 0.03
"""A figure that moved by less says nothing: fresh loaders of one configuration differ by twice that."""


def machine_changes(before: HostFacts, old: Device, after: HostFacts, new: Device) -> tuple[Change, ...]:
    """What of the machine and the installed versions differs, the device first."""
    pairs: list[tuple[str, Value, Value]] = [
        ("device", old.name, new.name),
        ("gpu_memory_total_bytes", _gpu_bytes(before, old), _gpu_bytes(after, new)),
    ]
    pairs += [(name, getattr(before, name), getattr(after, name)) for name in _MACHINE]
    return _different(pairs)


def workload_changes(before: TuningResult, after: TuningResult) -> tuple[Change, ...]:
    """What of the workload may differ in a sound comparison, and of loadtune itself."""
    old, new = before.config.workload, after.config.workload
    return _different(
        [
            ("loadtune_version", before.loadtune_version, after.loadtune_version),
            ("data_root", old.data_root, new.data_root),
            ("seed", old.seed, new.seed),
            ("dataset_length", _length(before), _length(after)),
        ]
    )


def step_changes(before: TuningResult, after: TuningResult) -> tuple[Change, ...]:
    """What makes the two another training step, so that their throughputs cannot be compared."""
    old, new = before.config.workload, after.config.workload
    found = _different([(name, getattr(old, name), getattr(new, name)) for name in _SAME_STEP])
    if found or before.facts is None or after.facts is None:
        return found
    facts = [(str(getattr(before.facts, name)), str(getattr(after.facts, name))) for name in _SAME_TENSORS]
    return _different([(name, *pair) for name, pair in zip(_SAME_TENSORS, facts, strict=True)])


def setting_changes(before: TrialConfig, after: TrialConfig) -> tuple[Change, ...]:
    """Of two configurations, as PyTorch spells them; an argument that one leaves out is None there."""
    old, new = ({**config.loader.kwargs(), **_recipe(config)} for config in (before, after))
    return _different([(name, old.get(name), new.get(name)) for name in (old | new)])


def figure_changes(before: Sequence[Measurement], after: Sequence[Measurement]) -> tuple[Change, ...]:
    """Means over runs of what the machine did meanwhile, as far as both sides know it and it moved.

    Runs are not of one length, so amounts that pile up over one are compared by what they come to in relation to it.
    """
    pairs: list[tuple[str, Value, Value]] = [
        (name, _mean(getattr(run, name) for run in before), _mean(getattr(run, name) for run in after))
        for name in ("wait_fraction", "first_batch_s", "peak_allocated_bytes", "samples_per_joule")
    ]
    old, new = ([run.telemetry for run in runs if run.telemetry is not None] for runs in (before, after))
    compared = [field.name for field in fields(Telemetry) if field.name not in _OF_A_RUNS_LENGTH]
    for name in (*compared, "cpu_throttled_fraction"):
        pairs.append((name, _mean(getattr(t, name) for t in old), _mean(getattr(t, name) for t in new)))
    return tuple(Change(name=name, before=old, after=new) for name, old, new in pairs if _moved(name, old, new))


def _gpu_bytes(host: HostFacts, device: Device) -> int | None:
    return next((gpu.total_bytes for gpu in host.gpus if gpu.uuid == device.uuid), None)


def _length(result: TuningResult) -> int | None:
    return None if result.facts is None else result.facts.dataset_length


def _recipe(config: TrialConfig) -> dict[str, Value]:
    return {field.name: getattr(config.recipe, field.name) for field in fields(config.recipe)}


def _different(pairs: Iterable[tuple[str, Value, Value]]) -> tuple[Change, ...]:
    return tuple(Change(name=name, before=old, after=new) for name, old, new in pairs if old != new)


def _mean(values: Iterable[object]) -> float | None:
    """Of what is a single number; timelines and figures per core are left to the result itself."""
    known = [float(value) for value in values if isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None


def _moved(name: str, before: Value, after: Value) -> bool:
    if not isinstance(before, float) or not isinstance(after, float):
        return False
    scale = 1.0 if name.endswith("_fraction") else abs(before)  # shares of time by points, all else relatively
    return abs(after - before) > _VISIBLE * scale
