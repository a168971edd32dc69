"""`find_batch_size` as people call it: objects of a script, a prompt or a notebook, measured in another process."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import torch
import torch._dynamo.utils  # makes the folder of its cache when it is imported, not within a test
from torch import nn
from torch.utils.data import DataLoader
from training_workloads import LanguageModel, Normed, Text

from loadtune import DeviceError, Job, LoadtuneError, UsageError, WorkloadError, find_batch_size

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def importable_workloads(monkeypatch):
    """What a script beside them would see."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}{os.pathsep}{ROOT}")


@pytest.fixture(autouse=True)
def leaves_nothing_behind(short_tmp):
    """No process, no file, no CUDA context."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before
    assert list(short_tmp.iterdir()) == []
    assert not torch.cuda.is_initialized()


def find(*what, **options):
    return find_batch_size(*what, **{"device": "cpu", "max_batch_size": 8} | options)


NUMBERS = [(torch.ones(4) * row, torch.ones(2) * row) for row in range(64)]
"""What cross entropy cannot take as targets."""
ROWS = [{"values": torch.rand(4), "label": torch.tensor(row % 2)} for row in range(32)]
FOUND = {
    "rows and a loss of model and batch": (
        (nn.Linear(4, 2), DataLoader(ROWS, batch_size=2, shuffle=True)),
        {"loss": lambda model, batch: nn.functional.cross_entropy(model(batch["values"]), batch["label"])},
    ),
    "a loss and an optimizer": ((nn.Linear(4, 2), NUMBERS), {"loss": nn.MSELoss(), "optimizer": torch.optim.Adam}),
    "names": (
        ("training_workloads:Linear", "training_workloads:Images"), {"precision": "bf16", "optimizer": "adamw"}
    ),
    "tokens": ((LanguageModel(), Text()), {}),
    "a list and a lambda": (
        (lambda: nn.Linear(4, 2), [(torch.zeros(4), 0), (torch.ones(4), 1)]), {"max_batch_size": None}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_people_have_is_trained_in_any_thread(in_thread, name):
    what, options = FOUND[name]
    found = []
    thread = threading.Thread(target=lambda: found.append(find(*what, **options)))
    thread.start()
    thread.join()
    (ceiling,) = found
    expected = (2, "dataset") if name == "a list and a lambda" else (8, "cap")
    assert (ceiling.batch_size, ceiling.limit) == expected
    assert ceiling.precision == options.get("precision", "fp32")


def test_a_job_holds_all_parts(in_thread):
    rows = DataLoader(NUMBERS, batch_size=2)
    job = Job(loader=rows, model=nn.Linear(4, 2), loss=nn.MSELoss(), optimizer="adamw", precision="bf16")
    ceiling = find(job)
    assert (ceiling.batch_size, ceiling.limit, ceiling.precision) == (8, "cap", "bf16")
    assert find(job, precision="fp32").precision == "fp32"


CELL = """
class Cell(Normed):
    def forward(self, images):
        return super().forward(images) * scale
scale = 2.0
"""


def test_a_notebooks_cell_and_a_shape(forked):
    names = {"__name__": "__main__", "Normed": Normed}
    exec(CELL, names)
    model = names["Cell"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ceiling = find(model, (3, 8, 8))
    assert (ceiling.batch_size, ceiling.limit, ceiling.precision) == (8, "cap", "fp32")
    assert min(probe.batch_size for probe in ceiling.probes) >= 2
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


SCRIPT = """
import psutil, torch, loadtune
from torch import nn
from beside import make_samples

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, WIDTH)

WIDTH = 3
ceiling = loadtune.find_batch_size(Net(), make_samples(), device="cpu", max_batch_size=8)
print("batch", ceiling.safe_batch_size)
print("left", psutil.Process().children(recursive=True), torch.cuda.is_initialized())
"""


def test_a_script_without_a_main_guard(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    (tmp_path / "project" / "beside.py").write_text("import torch\nmake_samples = lambda: [(torch.zeros(4), 1)] * 9\n")
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "project" / "train.py")], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}, timeout=120, check=False,
    )  # fmt: skip
    assert ended.stdout == "batch 8\nleft [] False\n", ended.stderr


def test_a_module_that_calls_it_while_imported_is_stopped(tmp_path, monkeypatch, forked):
    called = "loadtune.find_batch_size('calls:Linear', (3, 8, 8))"
    (tmp_path / "calls.py").write_text(f"import loadtune\nfrom training_workloads import Linear\n{called}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    with pytest.raises(WorkloadError, match="called again in the training process"):
        find("calls:Linear", (3, 8, 8))


LINEAR = nn.Linear(4, 2)
LOCKED = nn.Linear(4, 2)
LOCKED.lock = threading.Lock()
REFUSED_AT_ONCE = {
    "precision off": ((LINEAR, (4,)), {"precision": "off"}, UsageError, ["'off'", "fp32, fp16 or bf16"]),
    "cap 0": ((LINEAR, (4,)), {"max_batch_size": 0}, UsageError, ["max_batch_size is 0", "at least 1"]),
    "shape with 0": ((LINEAR, (3, 0)), {}, UsageError, ["(3, 0)", "at least 1", "(3, 224, 224)"]),
    "no such device": ((LINEAR, (4,)), {"device": "cuda:99"}, DeviceError, ["device is 'cuda:99'", "cpu"]),
    "a lock in the model": ((LOCKED, (4,)), {}, WorkloadError, ["model (Linear)", "lock", "pkg.mod:factory"]),
    "a lock in the loss": (
        (LINEAR, (4,)), {"loss": LOCKED.lock.acquire}, WorkloadError, ["The loss", "lock", "open files"]
    ),
}  # fmt: skip


def refused(arguments, options, kind, words):
    with pytest.raises(LoadtuneError) as raised:
        find(*arguments, **options)
    assert type(raised.value) is kind
    assert all(word in str(raised.value) for word in words), str(raised.value)
    return raised.value


@pytest.mark.parametrize("name", REFUSED_AT_ONCE)
def test_what_is_refused_before_a_process_starts(name, monkeypatch):
    platform.platform()  # Python asks `uname` once, by a process of its own
    monkeypatch.setattr(subprocess, "Popen", None)
    assert refused(*REFUSED_AT_ONCE[name])


def raises(*_):
    raise ValueError("mine to mend")


REFUSED_BY_THE_PROCESS = {
    "cap below the model's": ((Normed(), (3, 8, 8)), {"max_batch_size": 1}, UsageError, ["at least 2 samples"]),
    "a dense loss of a shape": (
        (nn.Conv2d(3, 3, 1), (3, 8, 8)), {"loss": nn.MSELoss()}, WorkloadError, ["pass a dataset instead of the shape"]
    ),
    "other shape": ((Normed(), (1, 8, 8)), {}, WorkloadError, ["float32 tensor (1, 8, 8)", "the shape or the mo"]),
    "loss raises": ((LINEAR, (4,)), {"loss": raises}, WorkloadError, ["ValueError: mine to mend"]),
    "no scalar": ((LINEAR, (4,)), {"loss": lambda outputs, _: outputs}, WorkloadError, ["(2, 2)", "take its mean"]),
    "numbers without a loss": ((LINEAR, NUMBERS), {}, WorkloadError, ["float32 tensor (2,)", "loss=fn"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BY_THE_PROCESS)
def test_what_only_the_process_can_tell(in_thread, name):
    error = refused(*REFUSED_BY_THE_PROCESS[name])
    if name == "loss raises":
        assert "in raises" in error.user_traceback
        assert not any(f"loadtune/{part}" in error.user_traceback for part in ("workload", "training"))


def test_what_cannot_be_loaded_there_says_where_from(tmp_path, monkeypatch):
    (tmp_path / "gone.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import gone

    (tmp_path / "gone.py").unlink()
    with pytest.raises(WorkloadError, match=r"No module named 'gone'.*importable there"):
        find(gone.Net(4, 2), (4,))
