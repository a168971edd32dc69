"""More workers than the search could choose: for samples that wait for storage, a network or a lock."""

from dataclasses import replace

from loadtune.records import Examined, TrialConfig
from loadtune.remedies.base import Remedy, Situation

BEYOND = 2
"""Times the most workers that the search could choose."""


class MoreWorkers(Remedy):
    title = "more workers than were searched"
    changes = "RAM for each worker"

    def offer(self, situation: Situation) -> TrialConfig | None:
        config, number = situation.config, BEYOND * situation.most_workers
        if situation.workers_are_bounded or not config.loader.num_workers or number <= config.loader.num_workers:
            return None
        return replace(config, loader=replace(config.loader, num_workers=number))

    def code(self, situation: Situation, seen: Examined) -> str:
        return f"loader = DataLoader(dataset, num_workers={situation.config.loader.num_workers}, ...)"
