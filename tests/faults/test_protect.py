"""A script that is started to be measured changes nothing that existed, in each way that works on this machine."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtune.errors import UsageError
from loadtune.inflight.hook import INJECTED
from loadtune.script import protect
from loadtune.script.launch import NOT_STARTED
from loadtune.script.protect import Protection, command, covered, forget, protection_here

ACTS = {
    "made": "open('made', 'x').close()",
    "written": "open('written', 'w').write('changed')",
    "appended": "open('appended', 'a').write('changed')",
    "saved": "torch.save(torch.ones(3), 'saved')",
    "tensors": "save_file({'w': torch.ones(3)}, 'tensors')",
    "mapped": "numpy.memmap('mapped', mode='r+', dtype='u1')[:3] = 7",
    "replaced": "open('fresh', 'w').write('changed'); os.rename('fresh', 'replaced')",
    "removed": "os.remove('removed')",
    "truncated": "os.truncate('truncated', 1)",
    "copied": "subprocess.run(['cp', script, 'copied'], check=True, stderr=subprocess.DEVNULL)",
    "folder": "shutil.rmtree('folder')",
    "../../job/beside": "open('../../job/beside', 'w').write('changed')",
}
WRITES = """
import json, os, shutil, subprocess, sys
if "torch" in sys.argv[2]:
    import numpy, torch
    from safetensors.torch import save_file
script, done = os.path.abspath(sys.argv[0]), {}
os.chdir(sys.argv[1].partition("=")[2])
state = lambda name: (os.path.exists(name), os.path.isfile(name) and open(name, "rb").read())
for name, act in json.loads(sys.argv[2]).items():
    before = state(name)
    try:
        exec(act)
        done[name] = "changed" if state(name) != before else "not"
    except Exception as error:
        done[name] = type(error).__name__
print(json.dumps(done))
"""


class Job:
    """A script in a folder, the output of earlier runs in another one, and one way of protection."""

    def __init__(self, way, folder):
        self.protection = Protection("overlay" if way == "user namespace" else way, "")
        # root without the right to mount: it needs a user namespace, as others do
        self.before = (lambda: ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)) if way == "user namespace" else None
        self.scratch, self.cwd, self.out = folder / "scratch", folder / "job", folder / "earlier" / "out"
        for each in (self.scratch, self.cwd, self.out / "folder"):
            each.mkdir(parents=True)
        for name in ACTS.keys() - {"made", "folder"} | {"folder/file", "touched"}:
            (self.out / name).write_text("of an earlier run")

    def start(self, code, *words, keep=(), **given):
        (self.cwd / "train.py").write_text(code)
        argv = command(self.protection, [sys.executable, "train.py", *words], self.cwd, self.scratch, keep)
        given |= {"preexec_fn": self.before, "start_new_session": True, "text": True}
        return subprocess.Popen(argv, cwd=self.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **given)

    def run(self, code, *words, **given):
        process = self.start(code, *words, **given)
        out, said = process.communicate()
        assert process.returncode == 0, said
        return out.strip()

    def files(self):
        found = [path for folder in (self.out, self.cwd) for path in folder.rglob("*") if path.name != "train.py"]
        return {path: (path.is_file() and path.read_bytes(), path.lstat().st_mode) for path in found}

    def clean(self):
        forget(self.scratch, caches=True)
        shutil.rmtree(self.scratch)


@pytest.fixture(params=["overlay", "user namespace", "landlock"])
def job(request, tmp_path, monkeypatch):
    if request.param == "user namespace" and os.geteuid() != 0:
        pytest.skip("without root, overlays take a user namespace already")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".cache").mkdir(parents=True)
    made = Job(request.param, tmp_path)
    process = made.start("")
    if process.wait() == NOT_STARTED:
        pytest.skip(f"the kernel refuses: {process.stderr.read()}")
    return made


def test_every_byte_stays_and_no_start_sees_what_another_wrote(job):
    before = job.files()
    for acts in (ACTS, {name: act for name, act in ACTS.items() if name not in ("saved", "tensors", "mapped")}):
        done = json.loads(job.run(WRITES, f"--out={job.out}", json.dumps(acts)))
        if job.protection.way == "overlay":
            assert done == dict.fromkeys(acts, "changed")
        else:
            assert "changed" not in done.values(), done
        assert job.files() == before
    job.clean()


def test_a_cache_is_found_at_the_next_start_and_not_kept(job, monkeypatch, tmp_path):
    if job.protection.way == "landlock":
        pytest.skip("under Landlock caches can only be read")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "there"))
    count = "import os; f = open(os.path.expandvars('{}/n'), 'a'); f.write('.'); print(f.tell())"
    for cache in ("$HOME/.cache", "$HF_HOME"):
        assert job.run(count.format(cache)) == "1"
        forget(job.scratch)
        assert job.run(count.format(cache)) == "2"
    assert not any((tmp_path / "home" / ".cache").iterdir())
    assert not (tmp_path / "not").exists()
    job.clean()


def test_it_is_started_as_without_protection(job):
    code = "import os, sys; print(os.getpid(), os.getuid(), os.getgid(), os.getcwd(), dict(os.environ)); sys.exit(7)"
    environment = dict(os.environ)
    process = job.start(code, env=environment)
    if job.protection.way == "landlock":
        environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(job.scratch / "layers" / "start" / "tmp"))
    told = f"{process.pid} {os.getuid()} {os.getgid()} {job.cwd} {environment}\n"
    assert (*process.communicate(), process.returncode) == (told, "", 7)


def test_what_is_kept_can_be_written_and_sockets_and_shared_memory_work(job):
    kept, path = job.scratch / "kept", job.scratch / "socket"
    kept.mkdir()
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(b'here')"
    code += "; [open(path, 'x').write('written') for path in sys.argv[2:]]"
    shared = Path(f"/dev/shm/loadtune-test-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        job.run(code, str(path), str(kept / "account"), str(shared), keep=[kept, path])
        assert server.accept()[0].recv(9) == b"here"
    assert {shared.read_text(), (kept / "account").read_text()} == {"written"}
    shared.unlink()


def test_killed_in_the_middle_it_leaves_no_mount_and_no_folder(job):
    mounted, files = Path("/proc/self/mountinfo").read_bytes(), job.files()
    code = "import os, tempfile, time; d = tempfile.mkdtemp(); os.mkdir(d + '/a'); os.chmod(d, 0); os.fork()"
    process = job.start(code + "; os.write(1, b'.\\n'); time.sleep(60)")
    assert process.stdout.readline() + process.stdout.readline() == ".\n.\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert (Path("/proc/self/mountinfo").read_bytes(), job.files()) == (mounted, files)
    job.clean()


def test_the_way_is_found_by_trying_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    protection_here(unprotected=True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(protect, "_WAYS", (Protection("audit", ""),))  # it holds nothing
    with pytest.raises(UsageError, match=r"was written\)\. .* add --unprotected"):
        protection_here()
    assert protection_here(unprotected=True).way == "audit"
    assert list(tmp_path.iterdir()) == []


def test_unprotected_its_python_code_is_stopped_before_it_changes_what_existed(tmp_path):
    made = Job("audit", tmp_path)
    before, given = made.files(), {"folder": str(tmp_path), "audit": {"began_s": time.time(), "free": []}}
    environment = os.environ | {"PYTHONPATH": str(INJECTED), "LOADTUNE_RUN": json.dumps(given)}
    (made.scratch / "new").mkdir()
    acts = {name: act for name, act in ACTS.items() if name != "copied"}
    acts |= {"touched": "os.utime('touched'); open('touched', 'w')", "moved": "os.rename('folder', 'elsewhere')"}
    acts |= {"new": "open('new', 'w').write('a'); open('new', 'a').write('b'); os.rename('new', 'moved')"}
    done = json.loads(made.run(WRITES, f"--out={made.out}", json.dumps(acts), env=environment))
    assert {name for name, what in done.items() if what != "PermissionError"} == {"made", "new"}, done
    assert {path: kept for path, kept in made.files().items() if path in before} == before


def test_folders_in_arguments_are_covered(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    at = {name: tmp_path / name for name in ("job", "out", "logs", "data", "short", "of-file")}
    for each in at.values():
        each.mkdir()
    (at["of-file"] / "weights.pt").touch()
    words = f"python train.py --out {at['out']}/not/yet --logs={at['logs']} data.root=../data --lr=0.1 -o{at['short']}"
    found, caches = covered(f"{words} {at['of-file']}/weights.pt".split(), at["job"], {"HF_HOME": f"{tmp_path}/hf"})
    assert set(map(str, at.values())) <= set(found)
    assert {f"{tmp_path}/.cache", f"{tmp_path}/hf"} <= set(caches)
    assert not {"/", "/dev", "/proc", "/usr", f"{tmp_path}/hf"} & set(found)
    assert str(at["job"]) not in covered(["python"], at["job"], {"HF_HOME": str(at["job"])})[1]
