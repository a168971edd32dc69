"""NVML without a driver: a machine of three GPUs whose answers a test can change, and one that fails on every call."""

from types import SimpleNamespace

import pynvml

UUIDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3")
MIG = "MIG-5d0c"
NOT_SUPPORTED, NOT_FOUND = 3, 6


class FakeNvmlError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value


class FakeNvml:
    """GPUs whose handles are their UUIDs. ``refusing`` names functions that are not supported here.

    ``answers`` maps a function to what it returns, or to a callable that gets its arguments.
    """

    NVMLError = FakeNvmlError
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t

    def __init__(self, refusing=(), error=NOT_SUPPORTED, **answers):
        self.refusing, self.error, self.answers = refusing, error, answers
        self.num_inits = 0
        self.calls = []

    def __getattribute__(self, name):
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        self.calls.append(name)
        if name in self.refusing:
            raise FakeNvmlError(self.error)
        if name in self.answers:
            answer = self.answers[name]
            return answer if callable(answer) else lambda *args: answer
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.num_inits += 1

    def nvmlSystemGetDriverVersion(self):
        return "580.95"

    def nvmlDeviceGetCount(self):
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index):
        return UUIDS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in (*UUIDS, MIG):
            raise FakeNvmlError(NOT_FOUND)
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return UUIDS[2]

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetIndex(self, handle):
        return UUIDS.index(handle)

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle, version):
        return SimpleNamespace(version=version, total=1000, reserved=40, free=700, used=260)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        small = SimpleNamespace(pid=813, usedGpuMemory=60)
        return [small, SimpleNamespace(pid=812, usedGpuMemory=200)] if handle == UUIDS[0] else []

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return [SimpleNamespace(pid=812, usedGpuMemory=200), SimpleNamespace(pid=9, usedGpuMemory=None)]

    def nvmlSystemGetProcessName(self, pid):
        names = {812: "/opt/conda/bin/python3", 813: "/opt/Browser/chrome --type=gpu"}
        if pid not in names:
            raise FakeNvmlError(NOT_FOUND)
        return names[pid]

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == MIG:
            raise FakeNvmlError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=25, memory=5)


class BrokenNvml:
    """Opens, then fails on every call, and not even with its own error."""

    def nvmlInit(self):
        return None

    def __getattr__(self, name):
        def fail(*args):
            raise OSError(f"{name}: the library is from another driver")

        fail_type = type("NVMLError", (Exception,), {})
        return fail_type if name == "NVMLError" else fail
