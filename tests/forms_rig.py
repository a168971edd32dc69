"""Results whose winner a CPU can run, for the tests of what is handed over; and forms as the modules they are."""

import dataclasses
import importlib.util

from page_rig import GOLDEN, golden

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import Device

KEPT = GOLDEN


def on_cpu(*, num_workers=0, precision="fp32", channels_last=False, fused=False, optimizer="sgd", compiled=False):
    """The kept result, as if a CPU had this winner."""
    kept = golden()
    recipe = Recipe(
        precision=precision,
        memory_format="channels_last" if channels_last else "contiguous",
        fused_optimizer=fused,
        compile=compiled,
    )
    config = TrialConfig(loader=LoaderConfig(batch_size=8, num_workers=num_workers, prefetch_factor=3), recipe=recipe)
    return dataclasses.replace(
        kept,
        device=Device(kind="cpu", name="cpu"),
        config=dataclasses.replace(
            kept.config, workload=dataclasses.replace(kept.config.workload, optimizer=optimizer)
        ),
        best=dataclasses.replace(kept.best, config=config),
    )


def imported(text, folder, name="handed"):
    """Written to a file and imported, as a user would."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
