"""Two configurations measured in turn, so that what slows the machine for minutes slows both."""

from collections.abc import Callable
from dataclasses import dataclass, field

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records import Measurement, TrialConfig, TrialFailure
from loadtune.stages.run import TRIAL_SHARE, Run
from loadtune.stages.timing import outcome_text, timed


@dataclass(slots=True)
class Pair:
    """As many runs of the one as of the other."""

    base: TrialConfig
    config: TrialConfig
    base_runs: list[Measurement] = field(default_factory=list)
    runs: list[Measurement] = field(default_factory=list)
    base_failed: bool = False

    def run_until(self, is_enough: Callable[[], bool], run: Run, title: str) -> TrialFailure | None:
        """Each is run once a round, and every other round goes backwards. None: nothing failed."""
        while not is_enough():
            order = (self.base, self.config) if len(self.runs) % 2 == 0 else (self.config, self.base)
            outcomes = dict[TrialConfig, Measurement]()
            for config in order:
                outcome = _outcome(run, config)
                run.found.tell(f"{title}: {outcome_text(config, outcome, run.found.config.objective)}")
                if isinstance(outcome, TrialFailure):
                    self.base_failed = config == self.base
                    return outcome
                outcomes[config] = outcome
            self.base_runs.append(outcomes[self.base])
            self.runs.append(outcomes[self.config])
        return None


def _outcome(run: Run, config: TrialConfig) -> Measurement | TrialFailure:
    """A job that a change of the code made unfit for training is that change's failure, not the run's."""
    try:
        return timed(run, config, TRIAL_SHARE)
    except OutOfTimeError:
        raise
    except LoadtuneError as error:
        return TrialFailure(kind="user_error", phase="training", message=str(error))
