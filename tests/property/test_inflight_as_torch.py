"""Whatever a tuner switches and when: a loop sees what torch's DataLoader gives, and random numbers are as they were.

Switches are those of a replayed result, so that no clock decides what is tested.
"""

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_stream_as_torch import JOB, WHOLE, Rows, jobs_with, made_loader, seen_by
from torch.utils.data import DataLoader

from loadtune.inflight.account import Account
from loadtune.inflight.environment import Options
from loadtune.inflight.iterator import begun_by
from loadtune.inflight.tuner import Tuner


class Steady(Rows):
    """Draws no random numbers, so that the training process may load it as well as workers do."""

    def __getitem__(self, index):
        if index in self.bad:
            raise KeyError(f"bad sample {index}")
        return torch.tensor([index, self.epoch])


SWITCHES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 3)), max_size=4)
JOBS = jobs_with(SWITCHES)


def both_see(job):
    """What a loop sees with these switches, and without."""
    if job["order"] == "lists":
        job = job | {"bad": ()}
    seen = []
    for tuned in (False, True):
        loader, generator = made_loader(job)
        object.__setattr__(loader, "dataset", Steady(job["bad"]))
        account = Account(name="", own_workers=job["num_workers"], num_workers=job["num_workers"])
        if tuned:
            fewest = min(1, job["num_workers"])  # a loader with workers never goes on without
            switches = [
                {"epoch": epoch, "batch": batch, "num_workers": max(fewest, number)}
                for epoch, batch, number in job["switches"]
            ]
            replayed = Account(name="", own_workers=0, num_workers=0, switches=sorted(switches, key=str))
            tuner = Tuner(account, loader, Options(), replayed)
            loader._get_iterator = lambda loader=loader, tuner=tuner: begun_by(tuner, loader)
        # It changes the dataset between epochs unless persistent workers are switched: those to come would see that.
        switches = {(epoch, -1): {} for epoch, _, _ in job["switches"]}
        seen.append(seen_by(loader, loader, generator, job | {"switches": switches}))
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()
        assert job["bad"] or account.reason is None, account.reason
    return seen


EXAMPLE = JOB | {"switches": [(0, 5, 3)]}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(JOBS)
@example(EXAMPLE | {"num_workers": 0, "switches": [(0, 0, 2), (0, 7, 0), (1, 3, 1)]})
@example(EXAMPLE | {"persistent": True, "bad": (30,), "switches": [(0, 4, 3), (1, 4, 1)]})
@example(EXAMPLE | {"epochs": [5, WHOLE], "order": "batch_sampler"})
def test_a_loop_sees_what_torch_gives(job):
    torchs, tuned = both_see(job)
    assert tuned == torchs


def test_batches_are_switched_where_the_result_says():
    """Of a worker's random numbers those after a switch depend on it: a run that is repeated draws the same."""

    class Random(Rows):
        def __getitem__(self, index):
            return torch.rand(1)

    def run():
        torch.manual_seed(1)
        loader = DataLoader(Random(), 4, num_workers=1)
        switches = [{"epoch": 0, "batch": 5, "num_workers": 3}]
        account = Account(name="", own_workers=1, num_workers=1)
        tuner = Tuner(account, loader, Options(), Account(name="", own_workers=1, num_workers=1, switches=switches))
        found = [batch.tolist() for batch in begun_by(tuner, loader)]
        assert account.switches == switches
        return found

    assert run() == run()
