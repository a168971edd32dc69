"""The table of options as parameters of a command, and help by panel, which needs no rich: that would take longer."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from loadtune.api.options import Row, parsed
from loadtune.cli.ending import told_plainly
from loadtune.records.config import PANELS

F = TypeVar("F", bound=Callable[..., int | None])

_META = "help-all"
_TYPE = re.compile(" +<.*>$")  # what typer adds to an argument's name in help: ``<list[str]>``
NEWEST = ":newest"  # stands for the newest run; no folder of a run has a colon in its name

Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, all else on stderr.", rich_help_panel="Output")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only warnings, no progress.", rich_help_panel="Output")]
Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Show Python tracebacks; keep a failed run's log.", rich_help_panel="Output"),
]


def takes(rows: Iterable[Row]) -> Callable[[F], F]:
    """Gives a command these options. It gets those that were given as keywords, by `settings`."""

    def decorated(command: F) -> F:
        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each.kind is not each.VAR_KEYWORD]
        found = [*map(_parameter, rows), *kept]
        command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in found}
        return command

    return decorated


def settings(rows: Iterable[Row], words: Mapping[str, Any]) -> dict[str, Any]:
    return {row.name: parsed(row, words[row.name]) for row in rows if words.get(row.name) not in (None, [], ())}


def _parameter(row: Row) -> inspect.Parameter:
    kind: Any = list[str] if row.kind is tuple else bool if row.kind is bool else str  # a number is parsed with its row
    default = row.default or {None: "", (): "none"}.get(row.usual, str(row.usual).removesuffix(".0"))
    flags = row.flags or ((f"{row.flag}/--no-{row.flag[2:]}",) if kind is bool else (row.flag,))
    info = typer.Option(
        *flags,
        help=f"{row.help} [default: {default}]" if default else row.help,
        metavar="|".join(row.allowed) or row.value or {int: "N", float: "SECONDS"}.get(row.kind, "NAME"),
        rich_help_panel=row.panel,
        show_default=False,
    )
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _help_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[_META] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show every option.", is_eager=True, callback=_help_all, rich_help_panel="Output"),
]


class PanelCommand(TyperCommand):
    """Shows its options by panel. Its function returns the exit code; None is 0. Errors end as ``--verbose`` says."""

    common: tuple[str, ...] = ()
    """Options that ``--help`` shows; ``--help-all`` shows every option. Empty: all are common."""

    def invoke(self, ctx: Any) -> None:
        with told_plainly(ctx.params["verbose"]):
            code = super().invoke(ctx)
        ctx.exit(code or 0)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown: dict[str, list[tuple[str, str]]] = {panel: [] for panel in (*PANELS[:-1], "Options", PANELS[-1])}
        parameters: list[Any] = sorted(self.get_params(ctx), key=lambda each: each.param_type_name != "argument")
        for parameter in parameters:
            parameter.hidden = bool(self.common) and parameter.name not in self.common and _META not in ctx.meta
            if (record := parameter.get_help_record(ctx)) is not None:
                name, text = record
                usual = PANELS[-1] if parameter.name == "help" else "Options"
                shown[getattr(parameter, "rich_help_panel", None) or usual].append((_TYPE.sub("", name), text))
        for panel, records in shown.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


class RunCommand(PanelCommand):
    """Lets ``--resume`` come without a folder, which typer cannot declare, and keeps the ``--`` before a command."""

    common = (
        *("command", "loader", "dataset", "model", "loss", "optimizer"),
        *("batch_size", "num_workers", "pin_memory", "precision"),
        *("device", "time_budget_s", "out", "quiet", "help_all", "help"),
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        dashes = args.index("--") if "--" in args else len(args)
        command = [*args[dashes : dashes + 1], *args[dashes:]]  # what reads the options takes the first -- away
        args = args[:dashes]
        for at, word in enumerate(args):
            if word == "--resume" and (at + 1 == len(args) or args[at + 1].startswith("-")):
                args = [*args[:at], f"--resume={NEWEST}", *args[at + 1 :]]
        return super().parse_args(ctx, [*args, *command])
