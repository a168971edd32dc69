"""Python for a plain PyTorch loop: a module of arguments to import, and the loop's lines to paste."""

from dataclasses import fields

from loadtune.report.export import loader_code, recipe_code
from loadtune.report.forms.handed import Handed, assignment, comment


def python_module(handed: Handed) -> str:
    """``loader_kwargs.py``: data alone, so that importing it costs nothing."""
    recipe = handed.config.recipe
    return "\n".join(
        [
            comment(
                handed.provenance,
                "DataLoader(dataset, shuffle=True, drop_last=True, **LOADER_KWARGS) is what was measured, together with"
                " RECIPE: without it the device is slower, and fewer workers may do.",
            ),
            assignment("LOADER_KWARGS", handed.config.loader.kwargs()),
            assignment("RECIPE", {field.name: getattr(recipe, field.name) for field in fields(recipe)}),
        ]
    )


def pytorch_loop(handed: Handed) -> str:
    """Loader and training step, over ``dataset``, ``model`` and ``loss_fn``."""
    step = recipe_code(handed.config, handed.result.config.workload.optimizer, handed.result.device.kind)
    return "\n".join([comment(handed.provenance), loader_code(handed.config), step])
