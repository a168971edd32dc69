"""The whole story over a fake training, for the tests of what a run concludes."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import optuna.storages._rdb.storage
import pytest
from fakes import FakeSensor, FakeTraining, fake_host

from loadtune import __version__
from loadtune.records.config import TuneConfig
from loadtune.records.facts import Device, HostFacts
from loadtune.records.measurement import Progress
from loadtune.records.result import Result
from loadtune.run.state import Run, State
from loadtune.seams import Listener
from loadtune.story import tune_on

_Versions = optuna.storages._rdb.storage._VersionManager
_read_versions, _versions = _Versions._create_alembic_script, list[Any]()


def _once(self: Any) -> Any:
    """Optuna reads all versions of its tables for each study, a fifth of a run. Here it does for the first one."""
    if not _versions:
        _versions.append(_read_versions(self))
    return _versions[0]


_Versions._create_alembic_script = _once

ALL_TRIALS = TuneConfig(num_trials=3)
"""Few enough that the search ends with the last of them, and leaves a resumed run none. What a run takes where a test
gives no configuration: each trial costs a fit of the model."""

GPU = Device(kind="cuda", uuid="GPU-0", name="Fake GPU")


def tune_fake(
    training: FakeTraining,
    folder: Path,
    config: TuneConfig | None = None,
    listener: Listener | None = None,
    host: HostFacts | None = None,
    device: Device = GPU,
    host_now: Callable[[], HostFacts] | None = None,
    resume: bool = False,
    sensor: FakeSensor | None = None,
) -> Result:
    sensor, clock = sensor or FakeSensor(training.clock), training.clock
    config, host = config or ALL_TRIALS, host or fake_host()
    host_now = host_now or (lambda: host)
    state = State(config, host, device, __version__)
    return tune_on(Run(state, clock, training, sensor, folder, host_now, listener), resume=resume)


@cache
def _finished() -> tuple[Path, Result]:
    folder = Path(tempfile.mkdtemp(prefix="finished-"))
    atexit.register(shutil.rmtree, folder)
    return folder, tune_fake(FakeTraining(), folder)


def finished(folder: Path) -> Result:
    """A run of `ALL_TRIALS`, made once for all tests and copied into `folder`."""
    made, result = _finished()
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return result


def resumed(folder: Path, config: TuneConfig | None = None, training: FakeTraining | None = None, **given) -> Result:
    return tune_fake(training or FakeTraining(seed=1), folder, config, resume=True, **given)


def interrupt(*given: object) -> None:
    """Ctrl-C in place of a function."""
    raise KeyboardInterrupt


class Killed(BaseException):
    """As SIGKILL: nothing in the tuner handles it."""


def runs_in(stage: str, trial_number: int = 0) -> Callable[[Progress], object]:
    """For `killed`: in a run of this stage, after so many trials."""
    return lambda told: told.stage == stage and told.number > trial_number and told.current_samples_per_s


def killed(
    folder: Path,
    when: Callable[[Progress], object],
    config: TuneConfig | None = None,
    training: FakeTraining | None = None,
    **given,
) -> None:
    def listen(progress: Progress) -> None:
        if when(progress):
            raise Killed

    with pytest.raises(Killed):
        tune_fake(training or FakeTraining(), folder, config, listen, **given)
