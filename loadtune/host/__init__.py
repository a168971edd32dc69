"""The only place that knows psutil, NVML, ``/proc`` and cgroups. `machine` has the names that others use."""
