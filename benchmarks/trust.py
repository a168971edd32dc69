"""What must never happen: a measurement lost or counted twice, a leftover, an error that is no sentence.

    python benchmarks/trust.py chaos --count 60 --at-once 2
    python benchmarks/trust.py soak --minutes 30
    python benchmarks/trust.py fuzz --count 200000

``chaos`` kills the controller or the training process of a short run at a random moment, in half of the runs while a
file is half written, and resumes it. ``soak`` trains short epochs under `loadtune exec` and looks at what its process
holds. ``fuzz`` gives damaged input to everything that reads. Each prints its figures as one line of JSON, and ends with
1 where one is not as it must be.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
MARK = "LOADTUNE_TRUST"
"""A variable that every process of a run inherits, so that what is left of it is found."""
LONGEST_S = 150  # of a run, whose time budget is 60 s

JOB = """
import time

import torch
from torch import nn


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.full((32,), float(index)), index % 4


def model():
    return nn.Linear(32, 4)
"""

# Ends itself while the n-th file is half written: in place of loadtune's command.
HALF_WRITTEN = """
import os, signal, sys
from pathlib import Path

left, real = [int(sys.argv.pop(1))], os.fsync

def fsync(descriptor):
    left[0] -= 1
    if left[0] == 0:
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)

os.fsync = fsync
from loadtune.__main__ import main
main()
"""


def chaos(count, at_once, seed):
    """Runs that are killed, and resumed where the controller was."""
    folder = Path(tempfile.mkdtemp(prefix="trust-"))
    (folder / "job.py").write_text(JOB)
    whole_s = _undisturbed(folder)
    with ThreadPoolExecutor(at_once) as pool:
        ended = list(pool.map(lambda at: _killed_run(folder, at, random.Random(seed + at), whole_s), range(count)))
    wrong = [each for each in ended if each["wrong"]]
    found = {
        "runs": count,
        "seconds_undisturbed": round(whole_s, 1),
        "killed": dict(Counter(each["killed"] for each in ended)),
    }
    found |= {"measurements_kept": sum(each["kept"] for each in ended), "wrong": wrong}
    shutil.rmtree(folder)
    return found, not wrong and sum("too slow" in each["killed"] for each in ended) <= count / 10


def _command(folder, name, *words):
    kept = folder / name
    return [
        *("--dataset", "job:Rows", "--model", "job:model", "--device", "cpu", "--precision", "fp32", "--batch-size"),
        *("16", "--num-workers", "1", "--max-batch-size", "32", "--max-workers", "1", "--trials", "2"),
        *("--remedies", "none", "--time-budget", "60"),
        *("--out", str(kept), "--quiet", *words),
    ]


def _begin(folder, name, arguments):
    paths = [str(ROOT), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, MARK: name, "PYTHONPATH": ":".join(paths), "TMPDIR": str(folder / f"tmp-{name}")}
    environment["OMP_NUM_THREADS"] = "1"
    (folder / f"tmp-{name}").mkdir(exist_ok=True)
    log = (folder / f"{name}.txt").open("a")
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
    )


def _code(process, name):
    """Its exit code. None: it did not end, so it and all of its run are killed."""
    try:
        return process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        for pid in _marked(name):
            _kill(pid)
        process.wait()


def _undisturbed(folder):
    began, name = time.monotonic(), "whole"
    if _code(_begin(folder, name, ["-m", "loadtune", "run", *_command(folder, name)]), name) != 0:
        raise SystemExit(f"The undisturbed run failed:\n{(folder / f'{name}.txt').read_text()}")
    return time.monotonic() - began


def _run_file(folder, name):
    return next((folder / name).glob("*/*/run.json"), None)


def _measured(file):
    """What is kept, each by its own JSON: two measurements are never the same to the last digit."""
    kept = json.loads(file.read_text()) if file else {"trials": [], "confirmed": []}
    every = [each["measurement"] for each in (*kept["trials"], *kept["confirmed"]) if each["measurement"]]
    return Counter(json.dumps(each, sort_keys=True) for each in every)


def _killed_run(folder, number, chance, whole_s):
    name, wrong = f"run-{number}", list[str]()
    killed = chance.choice(["controller", "controller half written", "controller half written", "training"])
    arguments = ["-m", "loadtune"] if "half" not in killed else ["-c", HALF_WRITTEN, str(chance.randint(1, 14))]
    process = _begin(folder, name, [*arguments, "run", *_command(folder, name)])
    if "half" not in killed:
        time.sleep(chance.uniform(0.3, whole_s))
        for pid in [process.pid] if killed == "controller" else _trainings(name):
            _kill(pid)
    code = _code(process, name)
    if code == -signal.SIGKILL:
        wrong += _left(name, folder, "after the kill", within_s=6)
        before, resumed = _measured(_run_file(folder, name)), "--resume" if _run_file(folder, name) else None
        words = [*_command(folder, name)[-3:], *(["--resume"] if resumed else _command(folder, name)[:-3])]
        code = _code(_begin(folder, name, ["-m", "loadtune", "run", *words]), name)
        after = _measured(_run_file(folder, name))
        if lost := before - after:
            wrong.append(f"{sum(lost.values())} measurements lost")
    else:
        killed, after = f"{killed}, ended", _measured(_run_file(folder, name))
    if twice := [each for each, times in after.items() if times > 1]:
        wrong.append(f"{len(twice)} measurements counted twice")
    said = (folder / f"{name}.txt").read_text()[-400:]
    if code is None:
        wrong.append(f"it did not end in {LONGEST_S} s")
    elif code == 2 and "ended before anything was measured" in said:
        killed += ", then too slow"
    elif code != 0:
        wrong.append(f"exit code {code}: {said}")
    elif not list((folder / name).glob("*/*/result.json")):
        wrong.append("no result")
    wrong += _left(name, folder, "at the end", within_s=2)
    ended = {"run": number, "killed": killed, "kept": after.total(), "wrong": wrong}
    print(ended, file=sys.stderr, flush=True)
    return ended


def _kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _marked(name):
    """Living processes of a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"{MARK}={name}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if ours and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _trainings(name):
    return [pid for pid in _marked(name) if b"loadtune.training" in _words(pid)]


def _words(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _left(name, folder, when, within_s):
    """Processes, segments, temporary files. They may take a moment to go."""
    until, segments = time.monotonic() + within_s, _ownerless()
    while ((pids := _marked(name)) or segments) and time.monotonic() < until:
        time.sleep(0.1)
        segments &= _ownerless()  # those of a run beside this one go in a moment, too
    wrong = [f"{when}: processes {[b' '.join(_words(pid))[:80] for pid in pids]}"] if pids else []
    wrong += [f"{when}: segments {sorted(segments)}"] if segments else []
    if when == "at the end":
        known = {"report.html", "result.json", "run.json", "study.db", "training.log"}
        ended = [path.parent for path in (folder / name).glob("*/*/result.json")]  # a killed run's log and lock stay
        files = {path.name for each in ended for path in each.iterdir()} - known
        scratch = [path.name for path in (folder / f"tmp-{name}").iterdir() if path.name.startswith("loadtune")]
        wrong += [f"{when}: files {sorted(files)} {scratch}"] if files or scratch else []
    return wrong


def _ownerless():
    """Shared memory of processes that are gone."""
    names = [path.name for path in Path("/dev/shm").glob("torch_*")]
    return {name for name in names if not Path("/proc", name.split("_")[1]).exists()}


TRAINING = """
import json, os, sys, threading, time
from pathlib import Path

import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((64,), float(index))

def held():
    status = Path("/proc/self/status").read_text()
    return {
        "rss_mib": int(status.split("VmRSS:")[1].split()[0]) // 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(Path("/proc/self/task/%d/children" % os.getpid()).read_text().split()),
        "segments": len(list(Path("/dev/shm").iterdir())),
    }

if __name__ == "__main__":
    end_s, epochs = time.monotonic() + float(sys.argv[1]), 0
    due_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        loader = torch.utils.data.DataLoader(Rows(), 16, shuffle=True, num_workers=1)
        for batch in loader:
            batch.sum()
        epochs += 1
        if time.monotonic() > due_s:
            due_s += 20
            print(json.dumps({"epochs": epochs, **held()}), flush=True)
"""


def soak(minutes):
    """Short epochs under `loadtune exec`, each with a loader made anew."""
    folder = Path(tempfile.mkdtemp(prefix="trust-"))
    (folder / "train.py").write_text(TRAINING)
    done = subprocess.run(
        [sys.executable, "-m", "loadtune", "exec", "--", sys.executable, "train.py", str(60 * minutes)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    looks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    shutil.rmtree(folder)
    if done.returncode or len(looks) < 4:
        return {"code": done.returncode, "stderr": done.stderr[-2000:]}, False
    quarter = len(looks) // 4
    parts = {"second quarter": looks[quarter : 2 * quarter], "last quarter": looks[-quarter:]}
    held, grown = {name: {} for name in looks[0] if name != "epochs"}, []
    for name, each in held.items():
        for part, of_part in parts.items():
            figures = [look[name] for look in of_part]
            each[part] = {"least": min(figures), "median": median(figures), "most": max(figures)}
        early, late = each.values()
        # A leak raises the least and the median; pools that overlap for a moment raise the most.
        grown += [name for each in ("least", "median") if late[each] > early[each] + 8 * (name == "rss_mib")]
    found = {"minutes": minutes, "epochs": looks[-1]["epochs"], "held": held, "grown": grown}
    return found | {"said": done.stderr.splitlines()[-4:]}, not grown


def fuzz(count, seed):
    """Damaged input for everything that reads; only the errors that are documented may come."""
    chance, wrong, asked = random.Random(seed), Counter(), Counter()
    folder = Path(tempfile.mkdtemp(prefix="trust-"))
    every = readers(folder)
    began = time.monotonic()
    for _ in range(count):
        name, seeds, read, allowed = chance.choice(every)
        asked[name] += 1
        given = damaged(chance.choice(seeds), chance)
        try:
            read(given)
        except allowed:
            pass
        except BaseException as error:
            wrong[f"{name}: {type(error).__name__}: {str(error)[:120]} for {given[:80]!r}"] += 1
    shutil.rmtree(folder)
    found = {"inputs": count, "seconds": round(time.monotonic() - began, 1), "asked": dict(asked)}
    return found | {"wrong": wrong.most_common(20)}, not wrong


def readers(folder):
    """(Name, inputs that can be read, what reads one, errors that are documented) of each."""
    import numpy as np

    from loadtune import export
    from loadtune.api.given import TABLE, check, memory_of, parsed, with_settings
    from loadtune.errors import LoadtuneError, ResultError
    from loadtune.host import gpu, usable
    from loadtune.host.usable import read_cpu_name
    from loadtune.inflight import account
    from loadtune.records.config import TuneConfig
    from loadtune.report.forms import FORMS
    from loadtune.report.terminal import terminal_answer
    from loadtune.run.state import Resumable
    from loadtune.store import as_json, load_result, read_record

    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/unit/host")]
    from test_host_gpu import UUIDS, FakeNvml

    stored = (ROOT / "tests/golden/result.json").read_bytes()
    whole = json.loads(stored)
    small = json.dumps(whole | {"trials": whole["trials"][:1], "compute_points": [], "ceilings": []}).encode()
    kept = {
        "schema_version": whole["schema_version"],
        "config": whole["config"],
        "host": whole["host"],
        "device": whole["device"],
        "version": "0",
    }
    loader = account.Account(name="Rows at train.py:3", own_workers=1, num_workers=3, load_s=0.1, cpu_s=0.1)
    account.write_accounts([loader], folder)
    flight = (folder / account.RESULT_FILE).read_bytes()

    def from_file(read, name="given.json"):
        def with_file(content):
            (folder / name).write_bytes(content)
            return read(folder / name)

        return with_file

    def result(path):
        found = load_result(path)
        assert "None" not in "\n".join(terminal_answer(found))
        as_json(found)
        for form in FORMS:
            with suppress(ResultError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an answer that is not confirmed
                export(found, form)

    def option(content):
        row = TABLE[len(content) % len(TABLE)]
        words = content.decode(errors="replace")
        given = parsed(row, [words] if row.kind is tuple else row.kind is bool or words)
        check(with_settings(TuneConfig(), {row.name: given}), {row.name})

    def system(content):
        for name in ("proc/self/cgroup", "proc/self/mountinfo", "proc/cpuinfo", "sys/fs/cgroup/memory.stat"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        usable.read_cpu_quota(folder)
        usable.read_memory_limits(folder)
        read_cpu_name(folder)
        words = content.decode(errors="replace")
        usable.parse_quota(words), usable.parse_memory_limit(words), usable.parse_counters(words)

    def launcher(content):
        words = content.replace(b"\0", b"").decode(errors="replace").encode("utf-8", "replace").decode()
        for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"):
            os.environ[name] = words
        try:
            usable.rank(), usable.num_ranks(), usable.equal_share()
            os.environ.pop("LOCAL_WORLD_SIZE")
            usable.num_local_ranks()
        finally:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"):
                os.environ.pop(name, None)

    def driver(content):
        """A driver whose answers have the right types and any value."""
        chance = random.Random(content)
        number = lambda: chance.choice([-1, 0, 1, 7, 812, 2**31 - 1, 2**63, 2**64 - 1])  # noqa: E731
        memory = SimpleNamespace(total=number(), reserved=number(), free=number(), used=number())
        process = SimpleNamespace(pid=number(), usedGpuMemory=chance.choice([None, number()]))
        answers = {
            "nvmlSystemGetDriverVersion": content.decode(errors="replace"),
            "nvmlDeviceGetName": content.decode(errors="replace"),
            "nvmlDeviceGetUUID": chance.choice([content.decode(errors="replace"), *UUIDS]),
            "nvmlDeviceGetCount": chance.choice([0, 1, 3, 64]),
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetComputeRunningProcesses": [process] * chance.randrange(3),
        }
        given = dict(chance.sample(sorted(answers.items()), 3))
        asked = gpu.Nvml()
        asked._library = FakeNvml(refusing=chance.sample(sorted(answers), 1), error=chance.randrange(30), **given)
        gpu.read_gpus(asked)

    seeds = [
        b"0::/a/b\n4:memory:/x\n",
        b"30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
        b"150000 100000",
        b"oom_kill 3\n",
    ]
    words = [b"8", b"24GiB", b"5%", b"num_workers=4,pin_memory=true", b"train.py:make", b"cuda:1", b"fp16,bf16", b"0.5"]
    read_run = from_file(lambda path: read_record(path, Resumable, "run", or_else="run again"))
    return [
        ("result.json", [stored, small, small], from_file(result), ResultError),
        ("run.json", [json.dumps(kept).encode()], read_run, ResultError),
        ("options", words, option, LoadtuneError),
        ("sizes", words, lambda c: memory_of("--memory", c.decode(errors="replace")), LoadtuneError),
        ("inflight.json", [flight], from_file(account.read_accounts), ValueError),
        ("$LOADTUNE_CACHE", [flight], from_file(account.read_learnt), ()),
        ("/proc and cgroups", seeds, system, ()),
        ("launcher", [b"3", b"2(x3),1", b"16"], launcher, ()),
        ("NVML", [np.random.default_rng(0).bytes(12) for _ in range(20)], driver, ()),
    ]


def damaged(content: bytes, chance) -> bytes:
    """The same, changed in one to three places."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(content))
        kind = chance.randrange(8)
        if kind == 0:
            content = content[:at]
        elif kind == 1:
            content = content[:at] + bytes([chance.randrange(256)]) + content[at + 1 :]
        elif kind == 2:
            content = content[:at] + content[at + chance.randint(1, 20) :]
        elif kind == 3:
            content = content[:at] + content[max(0, at - 30) : at] * chance.randint(1, 3) + content[at:]
        elif kind == 4:
            content = content[:at] + chance.choice(NASTY) + content[at:]
        elif kind == 5:
            content = content[:at] + b"[" * chance.choice([10, 2000, 100_000]) + content[at:]
        elif kind == 6 and b":" in content:
            before, _, after = content.partition(b":")
            content = before + b":" + chance.choice(NASTY) + after.partition(b",")[2]
        else:
            content = content[:at] + chance.choice(NASTY) + content[at + 8 :]
    return content


NASTY = (
    b"-1", b"0", b"9" * 400, b"1e999", b"NaN", b"null", b"true", b'"\x1b[31mred"', b"\xff\xfe", b"\0", b"[]",
    b"{}", b'""', b"18446744073709551616", b"-9223372036854775809", b"\n", b" ", b"/../../etc/passwd", b"\xe2\x80\xae",
    b"%s%n", b"max", b":",
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["chaos", "soak", "fuzz"])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.what == "chaos":
        found, good = chaos(asked.count, asked.at_once, asked.seed)
    elif asked.what == "soak":
        found, good = soak(asked.minutes)
    else:
        found, good = fuzz(asked.count, asked.seed)
    print(json.dumps({asked.what: found, "good": good}, indent=1))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
