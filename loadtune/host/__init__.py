"""What machine is this, and what does it do right now? The only place that knows psutil, NVML, ``/proc`` and cgroups.

Importing it costs nothing: psutil, pynvml and the readers of the machine are loaded by the first question.
"""

from loadtune.host.facts import rank_cores, rank_facts, read_alloc_conf, read_host
from loadtune.host.gpu import choose_device, freest_gpu, read_gpus
from loadtune.host.telemetry import MonotonicClock, Sampler, read_telemetry
