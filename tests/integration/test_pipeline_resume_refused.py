"""A run that goes on mixes with no other machine, job or version, and one that is refused stays as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, GPU, Impatient, finished, resumed, tune_fake

from loadtune.errors import LoadtuneError, ResultError, WorkloadError
from loadtune.records.config import TuneConfig, WorkloadSpec
from loadtune.records.facts import CodePart, Device, WorkloadFacts
from loadtune.run_file import RUN_FILE
from loadtune.testing import GIB, FakeBench, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")


OTHERS: tuple[tuple[dict, str], ...] = (
    ({"config": TuneConfig(workload=WorkloadSpec(model="vit_b_16"))}, "model was 'resnet50' and is 'vit_b_16'"),
    ({"config": TuneConfig(max_workers=2)}, "max_workers was None and is 2"),
    ({"config": TuneConfig(ranks_per_node=2)}, "ranks_per_node was 1 and is 2"),
    ({"host": fake_host(num_usable_cores=4)}, "num_usable_cores was 16 and is 4"),
    ({"host": replace(fake_host(), torch="9.9")}, "torch was '2.11.0' and is '9.9'"),
    ({"host": replace(fake_host(), num_listed_cores=64)}, "num_listed_cores was 16 and is 64"),
    ({"host": replace(fake_host(), ram_total_bytes=64 * GIB)}, "RAM was 128 GiB and is 64.0 GiB"),
    ({"host": replace(fake_host(), driver="590.1")}, "driver was '580.0' and is '590.1'"),
    ({"host": replace(fake_host(), python="3.13.1")}, "python was '3.12.0' and is '3.13.1'"),
    ({"device": replace(GPU, uuid="GPU-1")}, "uuid was 'GPU-0' and is 'GPU-1'"),
)


def test_another_machine_or_job_is_refused_and_named(tmp_path: Path) -> None:
    finished(tmp_path)
    for differs, told in OTHERS:
        bench = FakeBench()
        with pytest.raises(ResultError, match="cannot be resumed here") as raised:
            resumed(tmp_path, bench=bench, **differs)
        assert told in str(raised.value)
        assert bench.requests == []


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("what", ["machine", "workload", "no workload"])
def test_a_run_that_is_refused_stays_as_it_was(tmp_path: Path, what: str) -> None:
    """Also where more trials were asked for: a later resumption without that runs none of them."""

    class Broken(FakeBench):
        def describe(self) -> WorkloadFacts:
            raise WorkloadError("importing the module raised SyntaxError")

    whole = finished(tmp_path)
    before, more = files(tmp_path), replace(ALL_TRIALS, num_trials=5)
    other = FakeBench(facts=replace(FakeBench().describe(), dataset_length=500))
    bench = {"machine": FakeBench(), "workload": other, "no workload": Broken()}[what]
    host = replace(fake_host(), torch="9.9") if what == "machine" else fake_host()
    with pytest.raises(LoadtuneError):
        resumed(tmp_path, more, bench, host=host, reopen=True)
    assert files(tmp_path) == before
    assert resumed(tmp_path, ALL_TRIALS).trials == whole.trials


def test_ctrl_c_while_a_resumed_run_starts_leaves_it_as_it_was(tmp_path: Path) -> None:
    config = TuneConfig(num_trials=1)
    tune_fake(FakeBench(), tmp_path, config)
    before = files(tmp_path)
    assert resumed(tmp_path, config, Impatient()).cut_short == "interrupted by Ctrl-C"
    assert files(tmp_path) == before


def test_another_dataset_under_the_same_name_is_refused(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=1))
    with pytest.raises(ResultError, match="dataset_length was 1281167 and is 500"):
        resumed(tmp_path, bench=FakeBench(facts=replace(FakeBench().describe(), dataset_length=500)))


def code(job: str = "aa", layers: str = "bb") -> tuple[CodePart, ...]:
    return CodePart(name="job.py", sha256=job), CodePart(name="the model's layers", sha256=layers)


def built_of(*parts: CodePart, torchvision: str | None = "0.26.0") -> FakeBench:
    return FakeBench(facts=replace(FakeBench().describe(), code=parts, torchvision=torchvision))


def test_other_code_under_the_same_name_is_refused(tmp_path: Path) -> None:
    tune_fake(built_of(*code()), tmp_path, TuneConfig(num_trials=1))
    for bench, told in (
        (built_of(*code(job="cc")), r"code of the workload has changed \(job.py\)"),
        (built_of(*code(job="cc", layers="dd")), r"\(job.py, the model's layers\)"),
        (built_of(*code(), torchvision="0.27.0"), r"torchvision was '0.26.0' and is '0.27.0'"),
    ):
        with pytest.raises(ResultError, match=told):
            resumed(tmp_path, bench=bench)
        assert bench.requests == []


def test_code_that_was_not_looked_at_refuses_nothing(tmp_path: Path) -> None:
    """An older file has none; and a module that is only imported now and then says nothing."""
    config, unknown = TuneConfig(num_trials=1), built_of(torchvision=None)
    tune_fake(unknown, tmp_path, config)
    path = tmp_path / RUN_FILE
    path.write_bytes(path.read_bytes().replace(b',"code":[],"torchvision":null', b""))
    assert resumed(tmp_path, config, built_of(*code())).best is not None
    (tmp_path / "now").mkdir()
    tune_fake(built_of(*code()), tmp_path / "now", config)
    more = CodePart(name="seldom.py", sha256="ee")
    assert resumed(tmp_path / "now", config, built_of(code()[0], more)).best is not None


def test_what_changes_by_itself_refuses_nothing(tmp_path: Path) -> None:
    config = TuneConfig(num_trials=1)
    tune_fake(FakeBench(), tmp_path, config)
    here = replace(fake_host(), hostname="pod-2", python="3.12.4", ram_available_bytes=GIB)
    for ram_bytes in (127 * GIB, 256 * GIB):
        notes = resumed(tmp_path, config, host=replace(here, ram_total_bytes=ram_bytes)).notes
        assert not any("pod-2" in note or "with loadtune" in note for note in notes)


def test_another_host_of_the_same_kind_is_noted_where_no_gpu_tells_them_apart(tmp_path: Path) -> None:
    config, cpu = TuneConfig(num_trials=1, precisions=("fp32",)), Device(kind="cpu", name="Fake CPU")
    tune_fake(FakeBench(), tmp_path, config, device=cpu)
    here = replace(fake_host(), hostname="pod-2", driver="590.1")  # a driver is no matter of a CPU's
    for _ in range(2):
        notes = resumed(tmp_path, config, device=cpu, host=here).notes
        assert any("on fake and continued on pod-2" in note for note in notes)


def test_another_version_is_noted_and_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TuneConfig(num_trials=1)
    monkeypatch.setattr("loadtune.tuner.__version__", "0.0.1")
    tune_fake(FakeBench(), tmp_path, config)
    monkeypatch.setattr("loadtune.tuner.__version__", "0.0.2")
    for _ in range(2):
        notes = resumed(tmp_path, config).notes
        assert any("loadtune 0.0.1 and continued with 0.0.2" in note for note in notes)
