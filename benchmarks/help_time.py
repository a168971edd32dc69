"""How long ``loadtune --help`` and ``import loadtune`` take, in fresh processes.

    python benchmarks/help_time.py [repeats]

Prints a table; exits with 1 if the median of ``--help`` is above 0.5 s, beyond which a command feels slow to answer.
"""

import platform
import statistics
import subprocess
import sys
import time

LIMIT_S = 0.5
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import loadtune": ["-c", "import loadtune"],
    "loadtune --help": ["-m", "loadtune", "--help"],
    "loadtune run --help": ["-m", "loadtune", "run", "--help"],
}


def seconds_of(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(
        f"Python {platform.python_version()}, {platform.system()}, {repeats} fresh processes each, after one unmeasured"
    )
    print(f"{'':22}{'median':>9}{'least':>9}{'most':>9}")
    medians = {}
    for name, arguments in COMMANDS.items():
        seconds_of(arguments)  # the first one compiles to bytecode and fills the file cache
        times = [seconds_of(arguments) for _ in range(repeats)]
        medians[name] = statistics.median(times)
        print(f"{name:22}{medians[name]:7.3f} s{min(times):7.3f} s{max(times):7.3f} s")
    return 1 if medians["loadtune --help"] > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
