"""A run that was cut off anywhere goes on where it was, and mixes with no other; over a fake training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB, FakeTraining, Surface, fake_facts, fake_host
from pipeline_rig import ALL_TRIALS, GPU, finished, interrupt, killed, resumed, runs_in, tune_fake

from loadtune import story
from loadtune.errors import ResultError, UsageError
from loadtune.records.config import Fixed, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.facts import CodePart
from loadtune.records.measurement import Progress
from loadtune.report.page import page_view
from loadtune.run.state import read_run
from loadtune.seams import Listener
from loadtune.store import RUN_FILE, load_result


def interrupt_at(stage: str) -> Listener:
    """Once."""
    interrupted: list[Progress] = []

    def listen(progress: Progress) -> None:
        if progress.stage == stage and not interrupted:
            interrupted.append(progress)
            raise KeyboardInterrupt

    return listen


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_resumed_search_tries_what_it_would_have_tried_anyway(tmp_path: Path) -> None:
    """Without noise: it learns from what was measured, and from nothing else."""

    def quiet() -> FakeTraining:
        return FakeTraining(noise=0.0, between_runs=0.0)

    config = TuneConfig(num_trials=5, time_budget_s=3000.0)  # no trial takes more than its share of the time left
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = tune_fake(quiet(), tmp_path / "whole", config)
    killed(tmp_path / "cut", runs_in("study", 2), config, quiet())
    result = resumed(tmp_path / "cut", config, quiet())
    assert [(each.config, each.predicted) for each in result.trials] == [
        (each.config, each.predicted) for each in whole.trials
    ]


@pytest.mark.parametrize("stage", ["calibrate", "study"])
def test_a_run_that_ended_before_its_first_trial_is_calibrated_once_and_whole(tmp_path: Path, stage: str) -> None:
    killed(tmp_path, lambda progress: progress.stage == stage)
    before, training = read_run(tmp_path), FakeTraining(seed=1)
    result = resumed(tmp_path, None, training)
    assert bool(before.ceilings) == bool(before.compute_points) == (stage == "study")
    assert (result.recipes == before.recipes) == (stage == "study")
    assert (training.requests[0][0] == "training") == (stage == "study")
    assert len({ceiling.precision for ceiling in result.ceilings}) == len(result.ceilings)
    assert result.best is not None


def test_a_confirmation_goes_on_with_what_it_measured_and_the_search_does_not(tmp_path: Path) -> None:
    """Killed in its second round; however many trials and however little time it is given now."""
    killed(tmp_path, lambda progress: progress.stage == "confirm" and len(read_run(tmp_path).confirmed) == 5)
    before, training = read_run(tmp_path), FakeTraining(seed=1)
    result = resumed(tmp_path, replace(ALL_TRIALS, num_trials=30, time_budget_s=10.0), training)
    assert list(result.trials) == before.trials
    runs = [run for finalist in result.finalists for run in finalist.runs]
    assert all(each.measurement in runs for each in before.confirmed)
    assert len(runs) > len(before.confirmed) == 5
    assert result.best is not None
    assert any("was resumed, with 8 measurements" in note for note in result.notes)
    assert load_result(tmp_path) == result


def test_a_run_that_went_to_its_end_is_not_resumed_and_stays_as_it_was(tmp_path: Path) -> None:
    finished(tmp_path)
    before, training = files(tmp_path), FakeTraining(seed=1)
    with pytest.raises(ResultError, match=r"went to its end, so nothing is left of it to resume\. Run again\."):
        resumed(tmp_path, replace(ALL_TRIALS, num_trials=30), training)
    assert training.requests == []
    assert files(tmp_path) == before


class Impatient(FakeTraining):
    """Ctrl-C while the workload is built."""

    describe = interrupt


def test_an_answer_stands_until_another_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "name_bottleneck", interrupt)
    whole = tune_fake(FakeTraining(), tmp_path)
    assert whole.cut_short == "interrupted by Ctrl-C"
    assert whole.best is not None
    assert "The confirmation was complete before that." in (page_view(whole)["warning"] or "")
    monkeypatch.undo()
    before = {name: content for name, content in files(tmp_path).items() if name in ("result.json", "report.html")}
    for training, stage in ((Impatient(), "never"), (FakeTraining(seed=1), "confirm")):
        again = resumed(tmp_path, None, training, listener=interrupt_at(stage))
        assert (again.cut_short, again.best) == ("interrupted by Ctrl-C", None)
        assert any("is kept: result.json and report.html are unchanged" in note for note in again.notes)
        assert before.items() <= files(tmp_path).items()
    result = resumed(tmp_path)
    assert result.best is not None
    runs = {finalist.config: finalist.runs for finalist in result.finalists}
    assert all(runs[each.config][: len(each.runs)] == each.runs for each in whole.finalists)
    assert load_result(tmp_path) == result


def test_a_run_that_is_resumed_often_says_so_once(tmp_path: Path) -> None:
    """Ended before its search it has no trial, and what its baseline assumes all the same."""
    first = tune_fake(FakeTraining(), tmp_path, None, interrupt_at("calibrate"))
    assert first.trials == ()
    again = [resumed(tmp_path, listener=interrupt_at(stage)) for stage in ("calibrate", "study", "confirm", "never")]
    assert again[0].assumed == first.assumed != ()
    told = [[note for note in each.notes if note.startswith("This run was resumed")] for each in again]
    assert [len(each) for each in told] == [1, 1, 1, 1]
    assert told[0][0].startswith("This run was resumed, with 0 measurements made")
    assert told[2] != told[3]
    assert again[3].best is not None


def test_a_resumed_run_searches_the_workers_that_it_searched_before(tmp_path: Path) -> None:
    """Where samples wait, how many workers are worth a trial depends on the time budget and on what a sample took."""
    waits = replace(fake_facts(Surface()), sample_cpu_s=Surface().sample_s / 20)
    longer = TuneConfig(num_trials=3, time_budget_s=600.0)
    killed(tmp_path, runs_in("study", 1), longer, FakeTraining(facts=waits))
    before = read_run(tmp_path).num_workers
    assert max(before) > 16, "more than there are cores"
    result = resumed(tmp_path, replace(longer, time_budget_s=100.0), FakeTraining(facts=waits, seed=1))
    assert len(result.trials) >= 3
    assert {trial.config.loader.num_workers for trial in result.trials} <= {0, *before}


def test_an_error_before_the_search_leaves_no_result(tmp_path: Path) -> None:
    """It would be the newest run, and hide one with an answer."""
    config = TuneConfig(
        yours=YourSettings(batch_size=1800), fix=(Fixed(name="batch_size", value=1800),), precisions=("fp32",)
    )
    with pytest.raises(UsageError, match="1800"):
        tune_fake(FakeTraining(), tmp_path, config)
    assert read_run(tmp_path).compute_points
    assert not (tmp_path / "result.json").exists()


CODE = CodePart(name="job.py", sha256="aa"), CodePart(name="the model's layers", sha256="bb")
CHANGED = tuple(replace(part, sha256="cc") for part in CODE)


def built_of(*parts: CodePart, **facts: Any) -> FakeTraining:
    return FakeTraining(facts=replace(FakeTraining().describe(), **{"code": parts, "torchvision": "0.26.0"} | facts))


OTHERS: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"config": replace(ALL_TRIALS, workload=WorkloadSpec(model="vit_b_16"))},
        "model was 'resnet50' and is 'vit_b_16'",
    ),
    ({"config": replace(ALL_TRIALS, seed=4, workload=WorkloadSpec(seed=4))}, "seed was 0 and is 4"),
    ({"config": replace(ALL_TRIALS, max_workers=2)}, "max_workers was None and is 2"),
    ({"host": fake_host(num_usable_cores=4)}, "num_usable_cores was 16 and is 4"),
    ({"host": replace(fake_host(), torch="9.9")}, "torch was '2.11.0' and is '9.9'"),
    ({"host": replace(fake_host(), driver="590.1")}, "driver was '580.0' and is '590.1'"),
    ({"host": replace(fake_host(), python="3.13.1")}, "python was '3.12' and is '3.13'"),
    ({"device": replace(GPU, uuid="GPU-1")}, "uuid was 'GPU-0' and is 'GPU-1'"),
    ({"training": built_of(*CODE, dataset_length=500)}, "dataset_length was 1281167 and is 500"),
    ({"training": built_of(*CHANGED)}, "code of the workload has changed (job.py, the model's layers)"),
    ({"training": built_of(*CODE, torchvision="0.27.0")}, "torchvision was '0.26.0' and is '0.27.0'"),
)


def test_another_machine_job_code_or_version_is_refused_and_named_once_and_what_changes_by_itself_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, runs_in("confirm"), training=built_of(*CODE))
    before = files(tmp_path)
    for differs, told in OTHERS:
        given = {"config": ALL_TRIALS, "training": built_of(*CODE)} | differs
        with pytest.raises(ResultError, match="cannot be resumed here") as raised:
            resumed(tmp_path, **given)
        assert str(raised.value).count(told) == 1
        assert given["training"].requests == []
    monkeypatch.setattr("pipeline_rig.__version__", "0.0.2")
    with pytest.raises(ResultError, match=r"loadtune was .* and is '0\.0\.2'"):
        resumed(tmp_path, training=built_of(*CODE))
    monkeypatch.undo()
    assert files(tmp_path) == before
    here = replace(fake_host(), hostname="pod-2", python="3.12.4", ram_available_bytes=GIB, ram_total_bytes=64 * GIB)
    more = CodePart(name="imported now and then.py", sha256="ee")
    assert resumed(tmp_path, training=built_of(CODE[0], more), host=here).best is not None


def test_what_cannot_be_resumed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"run\.json cannot be read: No such file .* without --resume"):
        read_run(tmp_path)
    (tmp_path / RUN_FILE).write_bytes(b'{"schema_version":2}')
    with pytest.raises(ResultError, match=r"run\.json is not a run .* without --resume"):
        read_run(tmp_path)
