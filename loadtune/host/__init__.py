"""The only place that knows psutil, NVML, ``/proc`` and cgroups."""
