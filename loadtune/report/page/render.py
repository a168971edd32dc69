"""A page as one HTML file: templates, a style sheet, one script, plotly.js, all of it inside. Adds no word or figure.

The file asks for nothing from anywhere, and its policy forbids a browser to: no request, and no script but the two
whose hashes it names. So not even words of a user's that were not escaped would run.
"""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path

from loadtune.errors import ResultError
from loadtune.report.page.figure import Figure

_FILES = Path(__file__).parent / "files"


def rendered(template: str, view: object, figures: Iterable[Figure]) -> str:
    """Raises ResultError where plotly.js is not installed."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FILES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    plotly, script = plotly_js(), (_FILES / "page.js").read_text(encoding="utf-8")
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


def plotly_js() -> str:
    """The script that the package ``plotly`` brings, read without importing that: nothing else of it is used."""
    spec = importlib.util.find_spec("plotly")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise ResultError("plotly.js was not found, which draws the page. The package plotly brings it: pip install plotly")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
