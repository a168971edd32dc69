"""Python for a plain PyTorch loop: a module of arguments to import, and code to paste."""

from dataclasses import fields

from loadtune.report.export import loader_code, recipe_code, structure_of
from loadtune.report.forms.export_context import ExportContext, assignment, comment
from loadtune.report.remedies import kept_code


def python_module(context: ExportContext) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    recipe = context.config.recipe
    with_recipe = "" if context.has_own_step else " Train with RECIPE too: the throughput was measured with both."
    parts = [
        comment(context.provenance, f"Use: {context.loader_call}.{with_recipe}"),
        assignment("LOADER_KWARGS", context.loader_kwargs),
    ]
    if not context.has_own_step:
        parts.append(assignment("RECIPE", {field.name: getattr(recipe, field.name) for field in fields(recipe)}))
    return "\n".join(parts)


def pytorch_loop(context: ExportContext) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``.

    Changes of the code that gain follow as comments, because they belong into several places of that script.
    """
    step = recipe_code(
        context.config, context.result.config.workload, context.result.device.kind, structure_of(context.result)
    )
    changes = kept_code(context.result) if context.winner == context.result.best else ()
    lines = [line for each in changes for line in ("", each.title, *each.lines)]
    on_top = [f"# {line}".rstrip() for line in ("What gains on top, in your own code:", *lines)] if lines else []
    loader = loader_code(context.result, context.config)
    return "\n".join([comment(context.provenance), loader, step, *on_top, *([""] if on_top else [])])
