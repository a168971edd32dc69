"""Start workers by forkserver instead of fork: they then share nothing with the training process."""

from dataclasses import replace
from typing import TYPE_CHECKING

from loadtune.model.resources import Job
from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    from loadtune.workload import Workload


class StartMethod(Remedy):
    title = "start workers by forkserver"
    changes = (
        "workers take seconds longer to start; the dataset has to pickle, and the script needs "
        '`if __name__ == "__main__":`'
    )

    def offer(self, situation: Situation) -> TrialConfig | None:
        config = situation.config
        starts = config.loader.num_workers > 0 and situation.facts.start_method == "fork"
        return config if starts and "cached" not in config.remedies else None  # each worker would get a copy

    def apply(self, workload: "Workload") -> "Workload":
        import pickle

        loader = workload.loader
        if loader.multiprocessing_context not in (None, "fork"):
            raise NotApplicableError(f"its workers start by {loader.multiprocessing_context} already")
        try:
            pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn))
        except Exception as error:
            raise NotApplicableError("the dataset does not pickle") from error
        return replace(workload, loader=replace(loader, multiprocessing_context="forkserver"))

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        return None  # nothing that the model knows changes

    def code(self, situation: Situation, seen: Examined) -> str:
        return 'loader = DataLoader(dataset, multiprocessing_context="forkserver", ...)'
