"""What one look of each of the sampler's probes costs, over idle processes named as a loader's workers (Linux).

    python benchmarks/sampling_probes.py [--workers 16] [--seconds 1]

``of a core`` is the look's CPU time at the pace at which the sampler takes it. On a machine with a GPU its probes are
there too. The last line is the bench's processes read by psutil instead of the kernel's line.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

from loadtune.host import choose_device, read_host
from loadtune.host.bench_use import BenchUse
from loadtune.host.probes import Scheduled, machine_probes
from loadtune.host.processes import ProcessTree, psutils_use
from loadtune.host.telemetry import INTERVAL_S

IDLE = """
import ctypes, os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)  # PR_SET_NAME
        time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""


def look_s(look: Callable[[float], object], seconds: float) -> float:
    """CPU seconds a look, over as many as fit."""
    look(time.monotonic())
    began_cpu_s, until_s, num_looks = time.process_time(), time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        look(time.monotonic())
        num_looks += 1
    return (time.process_time() - began_cpu_s) / num_looks


def measured(pid: int, seconds: float) -> list[str]:
    host = read_host()
    probes = machine_probes(choose_device(host, None), lambda: pid, host.num_usable_cores)
    named = [(type(scheduled.probe).__name__, scheduled) for scheduled in probes]
    named.append(("BenchUse by psutil", Scheduled(BenchUse(ProcessTree(lambda: pid, use=psutils_use)))))
    lines = []
    for name, scheduled in named:
        cost_s = look_s(scheduled.probe.look, seconds)
        scheduled.probe.close()
        share = cost_s / (INTERVAL_S * scheduled.every)
        lines.append(f"| {name} | {scheduled.every} | {cost_s * 1e6:.0f} | {share:.2%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    command = [sys.executable, "-c", IDLE, str(given.workers)]
    idle = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert idle.stdout is not None
        idle.stdout.readline()
        print("| probe | every so many readings | µs a look | of a core |\n|---|---|---|---|")
        print("\n".join(measured(idle.pid, given.seconds)))
    finally:
        os.killpg(idle.pid, 9)
        idle.wait()


if __name__ == "__main__":
    main()
