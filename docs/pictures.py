"""The README's pictures, from a result as a run left it: the terminal as SVG, two parts of the page as PNG.

    python docs/pictures.py RESULT_DIR [--out docs/images]

Takes a Chromium on the PATH. Says how large each file is; over 300 KB it ends with 1.
"""

import argparse
import base64
import io
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image  # comes with torchvision
from rich.console import Console, Group
from rich.terminal_theme import DIMMED_MONOKAI

from loadtune import TuningResult, load_result
from loadtune.report.page.write import write_page
from loadtune.report.text import banner_text, summary_text
from loadtune.report.view import banner, summary

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser_rig import Browser  # noqa: E402, where the tests drive a browser from

LIMIT_BYTES = 300_000
WHOLE_PX = 20_000
"""Higher than the page: nothing scrolls, so a picture is taken where an element was found."""
SECTIONS = ("Mind the batch size", "What holds it back", "Recipe, compute only", "What it took")
"""What the terminal's picture shows beside the figures; the code to paste is on the page's picture."""


def terminal_svg(result: TuningResult) -> str:
    """Banner and summary as `loadtune run` prints them, without code and memory curve, at 80 columns."""
    view = summary(result)
    shown = replace(
        view, curve=None, code=(), sections=tuple(section for section in view.sections if section.title in SECTIONS)
    )
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=80, file=nowhere, force_terminal=True, highlight=False)
        console.print(Group(banner_text(banner(result.host, result.device)), summary_text(shown)))
        svg = console.export_svg(title=f"loadtune run: {view.title}", theme=DIMMED_MONOKAI)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # they would be fetched from elsewhere


def shoot(browser: Browser, first: str, last: str, path: Path) -> None:
    """From the top of one element to the end of another, with a margin."""
    clip = browser.evaluate(
        f"""(() => {{
            const box = (selector) => document.querySelector(selector).getBoundingClientRect();
            const top = box({first!r}).top + scrollY, bottom = box({last!r}).bottom + scrollY;
            return {{ x: 0, y: Math.max(0, top - 16), width: document.documentElement.clientWidth,
                      height: bottom - top + 32, scale: 1 }};
        }})()"""
    )
    shot = browser.call("Page.captureScreenshot", format="png", clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)  # a third of the size, and looks the same


def page_pictures(result: TuningResult, answer: Path, figures: Path) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        page = write_page(result, Path(home) / "report.html")
        browser = Browser(Path(home))
        try:
            browser.open(page, width=1200, height=WHOLE_PX)
            shoot(browser, "#answer", "#answer", answer)
            browser.open(page, width=1200, height=WHOLE_PX, dark=True)
            shoot(browser, "#step", "#timelines", figures)
        finally:
            browser.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    result = load_result(arguments.result)
    terminal, answer, figures = (
        arguments.out / name for name in ("terminal.svg", "report-answer.png", "report-figures.png")
    )
    terminal.write_text(terminal_svg(result), encoding="utf-8")
    page_pictures(result, answer, figures)
    sizes = {path: path.stat().st_size for path in (terminal, answer, figures)}
    for path, size in sizes.items():
        print(f"{path}: {size / 1000:.0f} KB")
    return int(max(sizes.values()) > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
