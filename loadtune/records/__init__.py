"""The frozen dataclasses that cross a folder's border. `None` means not measured; 0 means measured zero.

Units are suffixes: ``_s`` seconds, ``_bytes``, ``_per_s``, ``_w`` watts, ``_fraction`` 0 to 1.
"""

from loadtune.records.bottleneck import (
    Bottleneck,
    ChangeKind,
    Estimate,
    LateBatches,
    Part,
    PredictedChange,
    Resource,
    ResourceLimit,
    RooflinePoint,
)
from loadtune.records.comparison import (
    Change,
    Check,
    CheckOutcome,
    Comparison,
    SameConfig,
    Side,
    Value,
)
from loadtune.records.configs import (
    DIMENSIONS,
    MEMORY_FORMATS,
    OPTIONAL_DIMENSIONS,
    PRECISIONS,
    Dimension,
    Fixed,
    LoaderConfig,
    MemoryFormat,
    OptionalDimension,
    Precision,
    Recipe,
    Setting,
    TrialConfig,
)
from loadtune.records.footprint import (
    BatchEstimate,
    Checkpoint,
    Checkpointed,
    FootprintReport,
    LayerFootprint,
    MemoryLines,
    StepAccount,
    StepOptimizer,
    StepVariant,
    WhatIf,
    block_bytes,
)
from loadtune.records.host import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.records.memory import (
    PROBE_MODES,
    AllocationTrace,
    BatchTry,
    CeilingLimit,
    FitReport,
    MemoryCeiling,
    ProbeMode,
)
from loadtune.records.progress import Progress
from loadtune.records.remedies import (
    REMEDY_MODES,
    Examined,
    LeftOut,
    Loading,
    Remedies,
    RemedyMode,
    TriedRemedy,
)
from loadtune.records.result import (
    SCHEMA_VERSION,
    Efficiency,
    Finalist,
    Predicted,
    Trial,
    TrialOrigin,
    TuningResult,
    Unconfirmed,
    UnconfirmedReason,
    Winner,
)
from loadtune.records.score import OBJECTIVES, SCORE_UNITS, Objective, Ratio, Score
from loadtune.records.telemetry import MemoryReading, Reading, Telemetry, Timeline, WorkerUse
from loadtune.records.timing import (
    MEMORY_KINDS,
    ComputePoint,
    FailureKind,
    Measurement,
    RecipeChoice,
    TrainingRun,
    TrialFailure,
    WorkerShare,
    non_finite_loss,
    raise_for_the_user,
)
from loadtune.records.trace import LineUse, MemoryTrace, TensorKind, TracedLine, TracedTensor
from loadtune.records.window import (
    Window,
    delivered_samples,
    half_width_fraction,
    sample_tokens,
    samples_per_s,
)
from loadtune.records.workload import (
    DEFAULT_DATASET,
    DEFAULT_MODEL,
    TIMM,
    CodePart,
    LiveObjects,
    OptimizerName,
    TuneConfig,
    WorkloadFacts,
    WorkloadPart,
    WorkloadSpec,
    YourSettings,
    is_import_path,
)
