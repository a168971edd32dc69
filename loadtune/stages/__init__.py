"""The stages of a run. They connect, the folders they call decide; each leaves what it found in `Findings`."""

from loadtune.stages.bottleneck import name_bottleneck
from loadtune.stages.changes import changes
from loadtune.stages.confirming import confirmation
from loadtune.stages.energy import check_energy
from loadtune.stages.memory import verify_memory
from loadtune.stages.probing import calibrate, start
from loadtune.stages.run import Run
from loadtune.stages.search_space import space
from loadtune.stages.searching import study
from loadtune.stages.time_budget import ended_text, overrun

__all__ = [
    "Run",
    "calibrate",
    "changes",
    "check_energy",
    "confirmation",
    "ended_text",
    "name_bottleneck",
    "overrun",
    "space",
    "start",
    "study",
    "verify_memory",
]
