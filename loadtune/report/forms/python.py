"""Python for a plain PyTorch loop: a module of arguments to import, and code to paste."""

from loadtune.report.export import loader_code, step_code
from loadtune.report.forms.export_context import ExportContext, assignment, comment
from loadtune.report.remedies import kept_code


def python_module(context: ExportContext) -> str:
    """``loader_kwargs.py``: two dictionaries; importing it imports nothing else."""
    with_recipe = "" if context.has_own_step else " Train with RECIPE too: the throughput was measured with both."
    parts = [
        comment(context.provenance, f"Use: {context.loader_call}.{with_recipe}"),
        assignment("LOADER_KWARGS", context.loader_kwargs),
    ]
    parts += [assignment("RECIPE", context.recipe)] if context.recipe else []
    return "\n".join(parts)


def pytorch_loop(context: ExportContext) -> str:
    """Loader and training step; the user's script defines ``dataset``, ``model`` and ``loss_fn``.

    Changes of the code that gain follow as comments, because they belong into several places of that script.
    """
    changes = kept_code(context.result) if context.winner == context.result.best else ()
    lines = [line for each in changes for line in ("", each.title, *each.lines)]
    on_top = [f"# {line}".rstrip() for line in ("What gains on top, in your own code:", *lines)] if lines else []
    code = [loader_code(context.result, context.config), step_code(context.result, context.config)]
    return "\n".join([comment(context.provenance), *code, *on_top, *([""] if on_top else [])])
