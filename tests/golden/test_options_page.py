"""docs/options.md lists the options of `loadtune run` as the command has them.

``LOADTUNE_REGENERATE=1 pytest tests/golden`` writes its tables again.
"""

import os
import re
from pathlib import Path
from typing import Any

from loadtune.api.given import TABLE
from loadtune.cli.app import RUN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
GENERATED = re.compile(r"(<!-- options: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def row(parameter: Any, keywords: dict[str, str]) -> str:
    flags = [f"`{flag}`" for flag in parameter.option_strings]
    if parameter.metavar:
        flags[-1] = f"`{parameter.option_strings[-1]} {parameter.metavar}`".replace("|", r"\|")
    found = re.fullmatch(r"(.*?)(?: \[default: (.*)\])?", parameter.help % {})
    keyword = f"`{keywords[parameter.dest]}`" if parameter.dest in keywords else ""
    return f"| {', '.join(flags)} | {keyword} | {found[2] or ''} | {found[1]} |\n"


def tables() -> dict[str, str]:
    """Of each panel, as the command shows it."""
    keywords, found = {row.name: row.name for row in TABLE}, dict[str, str]()
    parameters: list[Any] = [(each.title, one) for each in RUN._action_groups for one in each._group_actions]
    for panel, parameter in parameters:
        head = "| option | in Python | default | |\n|---|---|---|---|\n"
        if parameter.option_strings and parameter.dest not in ("help", "help_all"):
            found[panel] = found.get(panel, head) + row(parameter, keywords)
    return found


def test_the_page_has_every_option_as_it_is() -> None:
    text, shown = PAGE.read_text(encoding="utf-8"), tables()
    assert {panel for _, panel, _ in GENERATED.findall(text)} == shown.keys()
    current = GENERATED.sub(lambda found: f"{found[1]}\n{shown[found[2]]}\n{found[3]}", text)
    if os.environ.get("LOADTUNE_REGENERATE"):
        PAGE.write_text(current, encoding="utf-8")
    assert text == current or os.environ.get("LOADTUNE_REGENERATE")
