"""What is told of a run that is resumed and ended again, and what is refused: another machine, job or version."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pipeline_rig import ALL_TRIALS, GPU, Impatient, finished, resumed, tune_fake

from loadtune import tuner
from loadtune.errors import LoadtuneError, ResultError, UsageError, WorkloadError
from loadtune.records.config import Fixed, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.facts import CodePart, WorkloadFacts
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.report.page.view import page_view
from loadtune.report.page.write import PAGE_FILE
from loadtune.report.store import RESULT_FILE, load_result
from loadtune.run import read_run
from loadtune.seams import Listener
from loadtune.testing import GIB, FakeTraining, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")

MORE = replace(ALL_TRIALS, num_trials=5)


def interrupt_at(stage: str) -> Listener:
    """Once; in the study behind its third trial or a later one."""
    interrupted: list[Progress] = []

    def listen(progress: Progress) -> None:
        is_late = stage != "study" or (progress.message and (progress.trial_number or 0) >= 3)
        if progress.stage == stage and is_late and not interrupted:
            interrupted.append(progress)
            raise KeyboardInterrupt

    return listen


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def answer(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (RESULT_FILE, PAGE_FILE)}


def stands(result: TuningResult) -> bool:
    return any(f"is kept: {RESULT_FILE} and {PAGE_FILE} are unchanged." in note for note in result.notes)


@pytest.mark.parametrize("stage", ["start", "study", "confirm"])
def test_an_answer_stands_until_another_is_confirmed(tmp_path: Path, stage: str) -> None:
    finished(tmp_path)
    before, known = answer(tmp_path), len(read_run(tmp_path).trials)
    if stage == "start":
        cut = resumed(tmp_path, MORE, Impatient())
    else:
        cut = resumed(tmp_path, MORE, listener=interrupt_at(stage))
    assert cut.cut_short == "interrupted by Ctrl-C"
    assert cut.best is None
    assert stands(cut)
    assert answer(tmp_path) == before
    assert (len(read_run(tmp_path).trials) > known) == (stage != "start")
    assert any("run.json has what was measured since" in note for note in cut.notes) == (stage != "start")
    result = resumed(tmp_path, MORE, FakeTraining(seed=2))
    assert result.best is not None
    assert not stands(result)
    assert load_result(tmp_path) == result


def test_what_was_confirmed_anew_takes_its_place_whatever_ends_it_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    whole = finished(tmp_path)
    monkeypatch.setattr(tuner, "name_bottleneck", interrupt)
    cut = resumed(tmp_path, MORE)
    assert cut.cut_short is not None
    assert cut.best is not None
    assert cut.best != whole.best
    assert "The confirmation was complete before that." in (page_view(cut).warning or "")
    assert not stands(cut)
    assert load_result(tmp_path) == cut


def test_a_run_that_is_resumed_often_says_so_once(tmp_path: Path) -> None:
    """Ended before its search it has no trial, and what its baseline assumes all the same."""
    cut = tune_fake(FakeTraining(), tmp_path, MORE, interrupt_at("calibrate"))
    assert cut.trials == ()
    stages = ("calibrate", "study", "confirm", "never")
    again = [resumed(tmp_path, MORE, listener=interrupt_at(stage)) for stage in stages]
    assert again[0].assumed == cut.assumed != ()
    told = [[note for note in each.notes if note.startswith("This run was resumed")] for each in again]
    assert [len(each) for each in told] == [1, 1, 1, 1]
    assert told[0][0].startswith("This run was resumed, with 0 trials measured")
    assert told[1] != told[2] != told[3]
    assert again[3].best is not None


def test_an_error_before_the_search_leaves_no_result(tmp_path: Path) -> None:
    """It would be the newest run, and hide one with an answer."""
    config = TuneConfig(
        yours=YourSettings(batch_size=1800), fix=(Fixed(name="batch_size", value=1800),), precisions=("fp32",)
    )
    with pytest.raises(UsageError, match="1800"):
        tune_fake(FakeTraining(), tmp_path, config)
    assert read_run(tmp_path).compute_points
    assert not (tmp_path / RESULT_FILE).exists()


CONFIG = TuneConfig(num_trials=1, seed=0, workload=WorkloadSpec(seed=0))
CODE = CodePart(name="job.py", sha256="aa"), CodePart(name="the model's layers", sha256="bb")
CHANGED = tuple(replace(part, sha256="cc") for part in CODE)


def built_of(*parts: CodePart, **facts: Any) -> FakeTraining:
    return FakeTraining(facts=replace(FakeTraining().describe(), **{"code": parts, "torchvision": "0.26.0"} | facts))


OTHERS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"config": replace(CONFIG, workload=WorkloadSpec(model="vit_b_16"))}, "model was 'resnet50' and is 'vit_b_16'"),
    ({"config": replace(CONFIG, seed=4, workload=WorkloadSpec(seed=4))}, "seed was 0 and is 4"),
    ({"config": replace(CONFIG, max_workers=2)}, "max_workers was None and is 2"),
    ({"config": replace(CONFIG, ranks_per_node=2)}, "ranks_per_node was 1 and is 2"),
    ({"host": fake_host(num_usable_cores=4)}, "num_usable_cores was 16 and is 4"),
    ({"host": replace(fake_host(), torch="9.9")}, "torch was '2.11.0' and is '9.9'"),
    ({"host": replace(fake_host(), num_listed_cores=64)}, "num_listed_cores was 16 and is 64"),
    ({"host": replace(fake_host(), ram_total_bytes=64 * GIB)}, "RAM was 128 GiB and is 64.0 GiB"),
    ({"host": replace(fake_host(), driver="590.1")}, "driver was '580.0' and is '590.1'"),
    ({"host": replace(fake_host(), python="3.13.1")}, "python was '3.12.0' and is '3.13.1'"),
    ({"device": replace(GPU, uuid="GPU-1")}, "uuid was 'GPU-0' and is 'GPU-1'"),
    ({"training": built_of(*CODE, dataset_length=500)}, "dataset_length was 1281167 and is 500"),
    ({"training": built_of(CHANGED[0], CODE[1])}, "code of the workload has changed (job.py)"),
    ({"training": built_of(*CHANGED)}, "(job.py, the model's layers)"),
    ({"training": built_of(*CODE, torchvision="0.27.0")}, "torchvision was '0.26.0' and is '0.27.0'"),
)


def test_another_machine_job_or_code_is_refused_and_named_once_and_what_changes_by_itself_is_not(
    tmp_path: Path,
) -> None:
    tune_fake(built_of(*CODE), tmp_path, CONFIG)
    for differs, told in OTHERS:
        given = {"config": CONFIG, "training": built_of(*CODE)} | differs
        with pytest.raises(ResultError, match="cannot be resumed here") as raised:
            resumed(tmp_path, **given)
        assert str(raised.value).count(told) == 1
        assert given["training"].requests == []
    here = replace(fake_host(), hostname="pod-2", python="3.12.4", ram_available_bytes=GIB)
    more = CodePart(name="imported now and then.py", sha256="ee")
    for ram_bytes in (127 * GIB, 256 * GIB):
        host = replace(here, ram_total_bytes=ram_bytes)
        notes = resumed(tmp_path, CONFIG, built_of(CODE[0], more), host=host).notes
        assert not any("pod-2" in note or "with loadtune" in note for note in notes)


@pytest.mark.parametrize("what", ["machine", "workload", "no workload"])
def test_a_run_that_is_refused_stays_as_it_was(tmp_path: Path, what: str) -> None:
    """Also where more trials were asked for: a later resumption without that runs none of them."""

    class Broken(FakeTraining):
        def describe(self) -> WorkloadFacts:
            raise WorkloadError("importing the module raised SyntaxError")

    whole = finished(tmp_path)
    before, more = files(tmp_path), replace(ALL_TRIALS, num_trials=5)
    other = FakeTraining(facts=replace(FakeTraining().describe(), dataset_length=500))
    training = {"machine": FakeTraining(), "workload": other, "no workload": Broken()}[what]
    host = replace(fake_host(), torch="9.9") if what == "machine" else fake_host()
    with pytest.raises(LoadtuneError):
        resumed(tmp_path, more, training, host=host)
    assert files(tmp_path) == before
    assert resumed(tmp_path, ALL_TRIALS).trials == whole.trials


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path)
    monkeypatch.setattr("loadtune.tuner.__version__", "0.0.2")
    with pytest.raises(ResultError, match=r"loadtune was .* and is '0\.0\.2'"):
        resumed(tmp_path)
