"""A client of a script on the CPU, and one trial of it."""

from functools import partial

from loadtune.host.machine import choose_device, read_host
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, WorkloadSpec
from loadtune.script.process import ScriptProcess
from loadtune.script.protect import protection_here
from loadtune.training.client import TrainingClient

FP32 = Recipe(precision="fp32")


def client_of(command, log_path):
    launch = partial(ScriptProcess, command, protection_here())
    device = choose_device(read_host(), "cpu")
    return TrainingClient(WorkloadSpec(command=command), device, log_path=log_path, launch=launch)


def timed(client, size, recipe=FP32, workers=0, num_windows=2):
    """(What the trial came to, its windows)."""
    seen = []

    def watch(window):
        seen.append(window)
        return len(seen) < num_windows

    config = TrialConfig(loader=LoaderConfig(batch_size=size, num_workers=workers), recipe=recipe)
    return client.time_training(config, 0.05, watch), seen
