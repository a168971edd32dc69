"""The frozen dataclasses that cross a folder's border. `None` means not measured; 0 means measured zero.

Units are suffixes: ``_s`` seconds, ``_bytes``, ``_per_s``, ``_w`` watts, ``_fraction`` 0 to 1.
"""

from loadtune.records.configs import PRECISIONS, LoaderConfig, MemoryFormat, Precision, Recipe, TrialConfig
from loadtune.records.footprint import BatchEstimate, FootprintReport, LayerFootprint, MemoryLines, StepAccount
from loadtune.records.host import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.records.memory import AllocationTrace, CeilingLimit, FitReport, MemoryCeiling
from loadtune.records.progress import Progress, Reading
from loadtune.records.result import (
    SCHEMA_VERSION,
    Bound,
    Finalist,
    Trial,
    TrialOrigin,
    TuningResult,
    Verdict,
    Winner,
)
from loadtune.records.timing import (
    MEMORY_KINDS,
    ComputePoint,
    FailureKind,
    Measurement,
    RecipeChoice,
    Telemetry,
    TrainingRun,
    TrialFailure,
    Window,
    delivered_samples,
    half_width_fraction,
    samples_per_s,
)
from loadtune.records.trace import LineUse, MemoryTrace, TensorKind, TracedLine, TracedTensor
from loadtune.records.workload import (
    LiveObjects,
    OptimizerName,
    TuneConfig,
    WorkloadFacts,
    WorkloadSpec,
    YourSettings,
)

__all__ = [
    "MEMORY_KINDS",
    "PRECISIONS",
    "SCHEMA_VERSION",
    "AllocationTrace",
    "BatchEstimate",
    "Bound",
    "CeilingLimit",
    "ComputePoint",
    "Device",
    "FailureKind",
    "Finalist",
    "FitReport",
    "FootprintReport",
    "GpuFacts",
    "GpuProcess",
    "HostFacts",
    "LayerFootprint",
    "LineUse",
    "LiveObjects",
    "LoaderConfig",
    "Measurement",
    "MemoryCeiling",
    "MemoryFormat",
    "MemoryLines",
    "MemoryTrace",
    "OptimizerName",
    "Precision",
    "Progress",
    "Reading",
    "Recipe",
    "RecipeChoice",
    "StepAccount",
    "Telemetry",
    "TensorKind",
    "TracedLine",
    "TracedTensor",
    "TrainingRun",
    "Trial",
    "TrialConfig",
    "TrialFailure",
    "TrialOrigin",
    "TuneConfig",
    "TuningResult",
    "Verdict",
    "Window",
    "Winner",
    "WorkloadFacts",
    "WorkloadSpec",
    "YourSettings",
    "delivered_samples",
    "half_width_fraction",
    "samples_per_s",
]
