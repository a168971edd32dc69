"""The command line, with a stand-in for the tuner: what goes in, what comes out where, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import IO, Any

import pytest
from cli_rig import invoke
from page_rig import GOLDEN as KEPT

import loadtune.host.machine
from loadtune.api.given import TABLE
from loadtune.cli.app import COMMANDS
from loadtune.cli.command import termination_as_interruption
from loadtune.cli.exec import EXEC
from loadtune.errors import OutOfTimeError, ResultError, UsageError, WorkloadError
from loadtune.records.config import DIMENSIONS, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.measurement import Progress
from loadtune.records.result import Result
from loadtune.run.state import Resumable, read_run, write_run
from loadtune.store import load_result, write_result


class FakeTuner:
    """Stands in for `loadtune.api.tune.tune_config`: keeps what it was asked, answers the kept result or raises."""

    def __init__(self) -> None:
        self.asked: list[TuneConfig] = []
        self.resumed: list[Path | None] = []
        self.error: BaseException | None = None
        self.measured = False
        self.result: Result = load_result(KEPT)

    def tune(self, config: TuneConfig, folder: Path, listener: Callable[[Progress], None], *, resume: bool) -> Result:
        self.asked.append(config)
        self.resumed.append(folder if resume else None)
        (folder / "training.log").write_text("what the training wrote")
        listener(Progress(stage="start", message="built the workload", left_s=9.0))
        listener(Progress(stage="start", message="other processes are busy", warning=True, left_s=9.0))
        if self.measured:
            resumable(folder, config, 2)
        if self.error is not None:
            raise self.error
        write_result(self.result, folder)
        return self.result


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept result's."""
    host = load_result(KEPT).host
    monkeypatch.setattr(loadtune.host.machine, "read_host", lambda: host)


@pytest.fixture
def tuner(machine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTuner:
    fake = FakeTuner()
    monkeypatch.setattr("loadtune.api.tune.tune_config", fake.tune)
    monkeypatch.chdir(tmp_path)
    return fake


def test_a_run_prints_the_machine_the_answer_and_its_folder(tuner: FakeTuner) -> None:
    ended = invoke("run")
    assert ended.exit_code == 0
    example = (
        "This trains FakeData + resnet50. For your own: loadtune run --dataset FILE.py:NAME --model FILE.py:NAME\n"
    )
    places = [ended.stdout.index(part) for part in ("16 usable cores", example, "your settings", "DataLoader(")]
    assert places == sorted(places)
    (folder,) = Path("loadtune-results/FakeData-resnet50").iterdir()
    assert str(folder / "result.json") in ended.stdout
    assert load_result(folder) == tuner.result
    assert "built the workload" in ended.stderr
    assert tuner.asked == [TuneConfig()]


def test_every_option_reaches_the_tuner(tuner: FakeTuner) -> None:
    words = "--dataset CIFAR10 --model a.b:c --data-root d --image-size 32 --num-classes 10 --optimizer adamw"
    words += " --collate a.b:collate --loss train.py:loss --accumulate 2"
    words += " --batch-size 8 --num-workers 0 --pin-memory --persistent-workers --amp fp32 --device cuda"
    words += " --precision bf16,fp32 --precision BF16"
    words += " --max-batch-size 64 --max-workers 2 --trials 3 --time-budget 9.5 --out o --seed 4"
    words += " --fix num_workers=2 --fix pin_memory=off,batch_size=8"
    words += " --max-gpu-memory 24GiB"
    assert "For your own" not in invoke("run", *words.split()).stdout
    (asked,) = tuner.asked
    data = WorkloadSpec(dataset="CIFAR10", data_root="d", collate="a.b:collate", image_size=32, num_classes=10, seed=4)
    trained = {"model": "a.b:c", "loss": "train.py:loss", "accumulate": 2, "optimizer": "adamw"}
    assert asked.workload == replace(data, **trained)
    assert astuple(asked.yours) == (8, 0, True, "fp32", True)
    assert (asked.device, asked.precisions, asked.max_batch_size) == ("cuda", ("fp32", "bf16"), 64)
    assert (asked.max_workers, asked.num_trials, asked.time_budget_s, asked.out, asked.seed) == (2, 3, 9.5, "o", 4)
    fixed = {"num_workers": 2, "pin_memory": False, "batch_size": 8}
    assert {name: asked.fixed(name) for name in DIMENSIONS if asked.fixed(name) is not None} == fixed
    assert asked.max_gpu_memory_bytes == 24 * 2**30


def test_what_stands_after_the_dashes_is_the_scripts_command(tuner: FakeTuner) -> None:
    words = "python -m pkg.train --resume -- --time-budget 9"
    ended = invoke("run", "--time-budget", "60", "--", *words.split())
    assert (ended.exit_code, "For your own" in ended.stdout) == (0, False)
    workload = WorkloadSpec(command=tuple(words.split()))
    assert tuner.asked == [TuneConfig(workload=workload, time_budget_s=60.0)]
    assert tuner.resumed == [None]
    (folder,) = Path("loadtune-results/pkg.train").iterdir()
    resumable(folder, tuner.asked[0], 1)
    assert invoke("run", "--resume", "--", *words.split()).exit_code == invoke("run", "--resume").exit_code == 0
    assert tuner.asked[1:] == tuner.asked[:1] * 2


def test_json_is_alone_on_stdout_and_quiet_leaves_notes_and_the_summary(tuner: FakeTuner) -> None:
    ended = invoke("run", "--json")
    assert json.loads(ended.stdout)["schema_version"] == 2
    assert "result.json" in ended.stderr
    ended = invoke("run", "--quiet")
    assert ended.stderr == "note: other processes are busy\n"
    assert "usable cores" not in ended.stdout
    assert "your settings" in ended.stdout
    assert invoke("run", "--quiet", "--json").stderr == "note: other processes are busy\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --time-budget nan", "--time-budget is nan;"),
        ("run --time-budget soon", "--time-budget is 'soon'; it must be a number of seconds"),
        ("run --batch-size 1.5", "--batch-size is '1.5'; it must be a whole number"),
        ("run --loader make_loader", "--loader is 'make_loader'; it must be an import path"),
        ("run --optimizer lion", "--optimizer is 'lion'; it must be sgd (with momentum 0.9), adamw or an import path"),
        ("run --loader a:b --data-root d --collate a:c", "together with --data-root, --collate, but"),
        ("run --precision bf16,int8", "--precision is 'int8'"),
        ("run --fix num_workers", "--fix is 'num_workers' … such as num_workers=4"),
        ("run --fix pin_memory=2", "--fix pin_memory is '2' … true, yes, on, false"),
        ("run --fix num_workers=9 --max-workers 4", "--fix num_workers is 9 … --max-workers 4"),
        ("run --fix precision=bf16 --precision fp32", "--fix precision is bf16 … --precision"),
        ("run --remedies some", "--remedies is 'some' … none, auto or all"),
        ("run --out file", "--out is file"),
        ("run --max-gpu-memory 24", "--max-gpu-memory is '24' … with its unit, such as 24GiB"),
        ("run --resume", "loadtune-results holds no run to resume: it does not exist"),
        ("run --trials 2 vgg -j 4", "'vgg' stands without an option … -- before its command: loadtune run -- vgg -j 4"),
        ("run --", "the command is empty … loadtune run -- python train.py"),
        ("run -- train.py", "train.py is no program that can be started … loadtune run -- python train.py"),
        (
            "run --loss a:b --collate c:d -- python train.py",
            "the command is given together with --loss, --collate, but",
        ),
        ("run --fix memory_format=contiguous --remedies all -- true", "with --remedies, but"),
        ("run --nonsense", "--nonsense"),
        ("export RESULT --format yaml", "--format is 'yaml'; it must be python, pytorch"),
        ("export RESULT --out none/x.py", "x.py could not be written (No such file or directory)"),
        ("export .", "holds no result"),
        ("report RESULT --out result.json", "must name an HTML file"),
        ("exec --max-workers few -- true", "--max-workers is 'few'; it must be a whole number"),
    ],
)
def test_bad_input_is_told_in_a_message(tuner: FakeTuner, words: str, told: str) -> None:
    Path("file").write_text("")
    ended = invoke(*words.replace("RESULT", str(KEPT)).split())
    assert ended.exit_code == 2
    assert ended.stdout == "" or words == "run --out file", "where the machine is told before"
    assert all(part in ended.stderr for part in told.split(" … ")), ended.stderr
    assert "Traceback" not in ended.output
    assert tuner.asked == []
    assert os.listdir() == ["file"]  # nothing was begun


def test_an_error_of_the_users_code_comes_with_its_traceback_and_ours_where_it_is_asked_for(tuner: FakeTuner) -> None:
    tuner.error = WorkloadError("sample 3 raises ValueError", user_traceback='  File "mine.py", line 3\nValueError: no')
    ended = invoke("run")
    assert ended.exit_code == 2
    assert ended.stderr.index("mine.py") < ended.stderr.index("error: sample 3 raises ValueError")
    assert "loadtune/" not in ended.stderr
    assert os.listdir() == []  # a run that measured nothing leaves no folder
    ended = invoke("run", "-v")
    assert ended.exit_code == 2
    assert "Traceback" in ended.stderr
    assert [path.name for path in Path("loadtune-results").glob("*/*/*")] == ["training.log"]


@pytest.mark.parametrize(
    ("measured", "error", "code", "kept"),
    [
        (True, ResultError("result.json could not be written (No space left on device)."), 2, 2),
        (True, KeyboardInterrupt(), 130, 2),
        (False, OutOfTimeError("The time budget ended.", stuck="dataset[41] did not return for 12 s"), 2, 1),
        (False, OutOfTimeError("The time budget ended."), 2, 0),
    ],
)
def test_trials_are_kept_whatever_ends_a_run_and_a_log_where_the_error_says_that_it_has_the_stacks(
    tuner: FakeTuner, measured: bool, error: BaseException, code: int, kept: int
) -> None:
    tuner.measured, tuner.error = measured, error
    ended = invoke("run")
    assert (ended.exit_code, "Traceback" in ended.output) == (code, False)
    files = sorted(path for path in Path().rglob("*") if path.name in ("run.json", "training.log"))
    assert [path.name for path in files] == ["run.json", "training.log"][2 - kept :]
    assert all(len(read_run(path.parent).trials) == 2 for path in files if path.name == "run.json")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_signal_ends_a_run_once_unless_it_was_ignored(
    tuner: FakeTuner, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, ignored: bool
) -> None:
    """nohup ignores SIGHUP; a terminal that closes may send it twice."""

    def signalled(*asked: Any, **how: Any) -> Result:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt as interruption:
            os.kill(os.getpid(), number)
            tuner.result = replace(tuner.result, interrupted_by=str(interruption))
        return tuner.tune(*asked, **how)

    monkeypatch.setattr("loadtune.api.tune.tune_config", signalled)
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        assert invoke("run").exit_code == (0 if ignored else code)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ({"cut_short": "interrupted by Ctrl-C", "interrupted_by": "SIGINT"}, 130),
        ({"cut_short": "the time"}, 1),
        ({}, 1),
    ],
)
def test_a_run_without_an_answer_shows_what_it_saw_and_ends_with_a_code(
    tuner: FakeTuner, ended: dict[str, str], code: int
) -> None:
    tuner.result = replace(tuner.result, **ended, best=None, best_at_your_batch=None)
    shown = invoke("run")
    assert shown.exit_code == code
    assert "one measurement, not confirmed" in " ".join(shown.stdout.split())
    assert "DataLoader(" not in shown.stdout


def test_doctor_speaks_json_and_prints_the_freest_gpu_alone(machine: None) -> None:
    report = json.loads(invoke("doctor", "--json").stdout)
    assert report["host"]["num_usable_cores"] == 16
    assert report["device"]["uuid"] == "GPU-0001"
    (gpu,) = report["host"]["gpus"]
    assert gpu["processes"] == [{"pid": 812, "name": "python", "used_bytes": 10_145_000_000}]
    assert report["telemetry"]["gpu_utilization_fraction"] is None
    assert report["telemetry"]["missing"]["gpu_utilization_fraction"]
    assert invoke("doctor", "--freest-gpu").stdout == "GPU-0001\n"


@pytest.mark.parametrize("command", [each.prog.split()[1] for each in COMMANDS])
def test_help_comes_with_examples_in_80_columns(command: str) -> None:
    told = invoke(command, "-h").stdout
    assert f"loadtune {command}" in told.split("Example")[1]
    assert max(map(len, told.splitlines())) <= 80
    assert not re.search(r"\b(TEXT|INTEGER|FLOAT|RANGE|PATH(?!:FN| +With))\b", told), "a type of Python"


def test_help_of_a_run_is_short_and_the_rest_is_in_help_all() -> None:
    short, long = (invoke("run", word).stdout for word in ("--help", "--help-all"))
    shown, every = (set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)) for text in (short, long))
    assert len(shown) <= 16
    assert shown < every
    assert {row.flag for row in TABLE} < every


_RUN = """
import sys
import loadtune.host.machine as host, loadtune.api.tune as tuning
from loadtune.records.measurement import Progress
from loadtune.store import load_result
result = load_result(sys.argv.pop())
host.read_host, host.choose_device = lambda: result.host, lambda facts, asked: result.device

def tune(config, folder, listener, **how):
    for at in range(3):
        try:
            listener(Progress(stage="start", message=f"found {at}", left_s=1.0))
        except OSError:  # as a run takes it
            pass
    return result

tuning.tune_config = tune
from loadtune.__main__ import main
main()
"""


def ran(*words: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """As a process of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run([sys.executable, "-c", _RUN, *words, str(KEPT)], text=True, timeout=60, **streams)


@contextmanager
def gone_reader() -> Iterator[IO[bytes]]:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        yield gone


def test_a_reader_that_goes_away_is_no_error() -> None:
    with gone_reader() as gone:
        ended = ran("doctor", stdout=gone)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("to", ["full disk", "gone reader"])
def test_progress_that_reaches_nobody_costs_no_answer(tmp_path: Path, to: str) -> None:
    with gone_reader() as gone, open("/dev/full", "wb") as full:
        lost = full if to == "full disk" else gone
        ended = ran("run", "--num-workers", "99", "--out", str(tmp_path), stderr=lost)
    assert ended.returncode == 0
    assert "DataLoader(" in ended.stdout


def test_exec_takes_what_follows_its_options_as_the_command() -> None:
    def read(words: str) -> dict[str, Any]:
        return {name: value for name, value in EXEC.read(words.split()).items() if value}

    found = {"out": "d", "freeze": ["b", "c"], "max_workers": "3", "exact": True, "dry_run": True}
    words = "--out=a --freeze b --freeze=c --max-workers 3 --out d --exact --dry-run -- x --out y"
    assert read(words) == {"command": ["--", "x", "--out", "y"], **found}
    assert read("--until-tuned -v x -- y") == {"command": ["x", "--", "y"], "until_tuned": True, "verbose": True}
    assert read("-- -- x") == {"command": ["--", "--", "x"]}
    for wrong in ("-o", "--exact=1", "--outs", "--freeze"):
        with pytest.raises(UsageError, match="exec"):
            read(f"{wrong} -- x")


def resumable(folder: Path, config: TuneConfig, trials: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    kept = load_result(KEPT)
    write_run(Resumable(config, kept.host, kept.device, "0", trials=list(kept.trials[:trials])), folder)
    return folder


def test_a_resumed_run_takes_its_own_options_and_those_that_are_given(tuner: FakeTuner) -> None:
    config = TuneConfig(max_workers=3, num_trials=20, yours=YourSettings(num_workers=2))
    older, _ = (resumable(Path(f"loadtune-results/w/2026-01-0{day}T00-00-00Z"), config, 3) for day in (1, 2))
    assert invoke("run", "--resume").exit_code == 0
    assert invoke("run", "--resume", "--trials", "25", "--amp", "bf16").exit_code == 0
    assert invoke("run", "--resume", str(older), "--model", "vgg11").exit_code == 0
    assert [path and path.name[:10] for path in tuner.resumed] == ["2026-01-02", "2026-01-02", "2026-01-01"]
    newest, more, other = tuner.asked
    assert newest == config
    assert more == replace(config, num_trials=25, yours=YourSettings(num_workers=2, precision="bf16"))
    assert (other.workload.model, other.num_trials) == ("vgg11", 20)


def test_a_run_of_objects_is_not_resumed_without_them(tuner: FakeTuner) -> None:
    config = TuneConfig(workload=WorkloadSpec(model="Net", objects=("model",)))
    resumable(Path("loadtune-results/w/2026-01-01T00-00-00Z"), config, 1)
    ended = invoke("run", "--resume")
    assert ended.exit_code == 2
    assert "The model of this run came to loadtune.tune as Python objects" in ended.stderr
    assert tuner.asked == []


def test_a_run_that_was_cut_short_names_the_command_that_goes_on_with_it(tuner: FakeTuner) -> None:
    assert "--resume" not in invoke("run").stdout
    tuner.result = replace(tuner.result, cut_short="interrupted by Ctrl-C", best=None)
    assert "--resume" not in invoke("run").stdout, "there is nothing yet to go on with"
    tuner.measured = True
    assert "loadtune run --resume 'my runs/" in invoke("run", "--out", "my runs").stdout


@pytest.mark.parametrize("name", ["", "SIGTERM"])
def test_an_interruption_that_falls_into_a_finalizer_is_not_lost(name: str) -> None:
    class Finalized:
        def __del__(self) -> None:
            raise KeyboardInterrupt(name)

    def run() -> None:
        Finalized()
        time.sleep(60.0)

    with termination_as_interruption(), pytest.raises(KeyboardInterrupt, match=name or None):
        run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_elsewhere_than_on_linux_it_says_so(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for command in (("doctor",), ("exec", "--", "true")):
        assert "loadtune runs on Linux" in invoke(*command).stderr
