"""Python for a plain PyTorch loop: a module of arguments to import, and code to paste."""

from dataclasses import fields

from loadtune.report.export import loader_code, recipe_code
from loadtune.report.forms.handed import Handed, assignment, comment


def python_module(handed: Handed) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    recipe = handed.config.recipe
    return "\n".join(
        [
            comment(
                handed.provenance,
                "Use: DataLoader(dataset, shuffle=True, drop_last=True, **LOADER_KWARGS). Train with RECIPE too: the"
                " throughput was measured with both.",
            ),
            assignment("LOADER_KWARGS", handed.config.loader.kwargs()),
            assignment("RECIPE", {field.name: getattr(recipe, field.name) for field in fields(recipe)}),
        ]
    )


def pytorch_loop(handed: Handed) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``."""
    step = recipe_code(handed.config, handed.result.config.workload.optimizer, handed.result.device.kind)
    return "\n".join([comment(handed.provenance), loader_code(handed.config), step])
