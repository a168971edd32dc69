"""Deliver batches as they are made: where single slow samples hold up others that are ready."""

from dataclasses import replace

from loadtune.model.resources import Job
from loadtune.records import Estimate, Examined, TrialConfig
from loadtune.remedies.base import Remedy, Situation


class Unordered(Remedy):
    title = "in_order=False"
    changes = "the order of batches differs from run to run"

    def offer(self, situation: Situation) -> TrialConfig | None:
        loader = situation.config.loader
        if loader.num_workers < 2 or not loader.in_order:
            return None
        return replace(situation.config, loader=replace(loader, in_order=False))

    def gain(self, situation: Situation) -> Estimate | None:
        """At the most what is waited for late batches is gained, at the least nothing."""
        if situation.late is None:
            return None
        waited = min(0.9, situation.late.wait_fraction * situation.wait_fraction)
        most = 1 / (1 - waited)
        return Estimate(value=(1 + most) / 2, low=1.0, high=most)

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        return None  # nothing that the model knows changes

    def code(self, situation: Situation, seen: Examined) -> str:
        return "loader = DataLoader(dataset, in_order=False, ...)"
