"""Pages on disk: one HTML file each, with templates, style sheet, script and plotly.js inside, whole or not at all.

The file asks for nothing from anywhere, and its policy forbids a browser to: no request, and no script but the two
whose hashes it names. So not even words of a user's that were not escaped would run.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from loadtune.errors import ResultError
from loadtune.records.result import TuningResult
from loadtune.report.page.figures import Figure
from loadtune.report.page.view import board_view, page_view
from loadtune.report.store import load_result, result_files, write_whole

PAGE_FILE = "report.html"
_FILES = Path(__file__).parent / "files"


def write_page(result: TuningResult, path: Path) -> Path:
    """One run. Raises ResultError where it cannot be written, or plotly.js is not installed."""
    view = page_view(result)
    rendered = _rendered("page.html.jinja", view, [chapter.figure for chapter in view.chapters])
    return write_whole(path, rendered.encode())


def write_board(folders: Sequence[Path], path: Path) -> Path:
    """Every result below these folders on one page, which names those that cannot be read."""
    results: list[TuningResult] = []
    unread: list[str] = []
    for file in sorted({file.resolve() for folder in folders for file in result_files(folder)}):
        try:
            results.append(load_result(file))
        except ResultError as error:
            unread.append(str(error))
    return write_whole(path, _rendered("board.html.jinja", board_view(results, unread), []).encode())


def _rendered(template: str, view: object, figures: Sequence[Figure]) -> str:
    """With plotly.js where there are figures. Raises ResultError where it is not installed."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FILES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    plotly, script = _plotly_js() if figures else "", (_FILES / "page.js").read_text(encoding="utf-8")
    panels = {f"{figure.key}-{place}": panel for figure in figures for place, panel in enumerate(figure.panels)}
    return environment.get_template(template).render(
        page=view,
        drawn=as_data({key: {"data": panel.data, "layout": panel.layout} for key, panel in panels.items()}),
        style=(_FILES / "page.css").read_text(encoding="utf-8"),
        plotly=plotly,
        script=script,
        policy=_policy(plotly, script),
    )


def as_data(value: object) -> str:
    """JSON that may stand within a script element: nothing in it can end one, or begin a comment."""
    raw = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: no line separators of Unicode's either
    return raw.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly_js() -> str:
    """The script that the package ``plotly`` brings, read without importing that: nothing else of it is used."""
    spec = importlib.util.find_spec("plotly")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise ResultError("plotly.js was not found, which draws the page. The package plotly brings it: pip install plotly")


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
