"""The pictures of README and docs, from data that lies beside them; docs/images holds both.

    python docs/pictures.py record [--append] COMMAND...   # runs it; its lines, with seconds, into exec.jsonl
    python docs/pictures.py recording                      # exec.jsonl to exec.svg, a terminal
    python docs/pictures.py page RESULT_DIR                # idle-*.png, figures of a run's page; needs a Chromium

exec.jsonl has a line for each line of the terminal: [seconds since its command began, text]. A command has "$ " first.
Where lines are left out stands one with the text "…".
"""

import argparse
import base64
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH, MARGIN = 800, 16
WHOLE_PX = 20_000
"""Higher than the page, so that nothing scrolls."""

STYLE = """
  text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1f2328 }
  text.bold { font-weight: 600 } .end { text-anchor: end } text.small { font-size: 11.5px }
  .paper { fill: #ffffff; stroke: #d0d7de } text.dim { fill: #59636e } text.ours { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .paper { fill: #0d1117; stroke: #3d444d }
    text.dim { fill: #9198a1 } text.ours { fill: #58a6ff }
  }
"""
"""In both colours."""


def svg(height: float, title: str, body: list[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    paper = f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}\n</style>", paper]
    return "\n".join([*lines, *body, "</svg>\n"])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" xml:space="preserve">{escape(words)}</text>'


# The terminal

CLOCK, COLUMNS, LINE_PX = 64, 91, 20
"""Pixels of the column of seconds, letters of a line, pixels of a line."""


def record(command: list[str], path: Path, *, append: bool) -> int:
    """Run a command, show its lines of both streams, and keep them. Returns its exit code."""
    begun = time.monotonic()
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    running = subprocess.Popen(command, env=os.environ | {"PYTHONUNBUFFERED": "1"}, **streams)
    with path.open("a" if append else "w", encoding="utf-8") as kept, running:
        print(json.dumps([0.0, f"$ {shlex.join(command)}"]), file=kept)
        for line in running.stdout:
            shown = line.rstrip().rpartition("\r")[2]  # of a progress bar, its end
            print(json.dumps([round(time.monotonic() - begun, 1), shown], ensure_ascii=False), file=kept, flush=True)
            print(shown, flush=True)
    return running.returncode


def recording(data: str) -> str:
    """A terminal with these lines, each at its second: commands in bold, loadtune's words in colour."""
    lines = [json.loads(line) for line in data.splitlines()]
    starts = [number for number, (_, line) in enumerate(lines) if line.startswith("$ ")]
    commands = [lines[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    body, y = [], MARGIN - 4.0
    for command in commands:
        for seconds, line in command:
            kind = "bold" if line is command[0][1] else "ours" if line.startswith("loadtune:") else "dim"
            for number, part in enumerate(textwrap.wrap(line, COLUMNS, subsequent_indent="  ") or [""]):
                y += LINE_PX
                if kind != "bold" and number == 0:
                    body.append(text(CLOCK - 12, y, f"{seconds:.0f} s", "dim small end"))
                body.append(text(MARGIN if kind == "bold" else CLOCK, y, part, kind))
        y += LINE_PX / 2
    title = "A terminal: " + ", then ".join(command[0][1][2:] for command in commands)
    return svg(y + MARGIN - LINE_PX / 2, title, body)


# Figures of a run's page


def page(result: Path) -> None:
    """Those that docs/gpu-idle.md walks through."""
    from PIL import Image  # comes with torchvision

    from loadtune import load_result
    from loadtune.report.page import write_page

    sys.path.insert(0, str(IMAGES.parents[1] / "tests"))
    from browser_rig import Browser  # the tests' own way to a browser

    box = "(({ top, height }) => ({ top, height }))(document.querySelector('#%s').getBoundingClientRect())"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = Browser(Path(home))
        try:
            browser.open(write_page(load_result(result), Path(home) / "report.html"), width=1000)
            tall = {"width": 1000, "height": WHOLE_PX, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **tall)
            for name in ("timelines", "roofline"):
                place = browser.evaluate(box % name)
                clip = {"x": 0, "y": place["top"], "width": 1000, "height": place["height"], "scale": 1}
                shot = browser.call("Page.captureScreenshot", format="png", clip=clip)
                picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
                few = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # a third of the size
                few.save(IMAGES / f"idle-{name}.png", optimize=True)
        finally:
            browser.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pictures = parser.add_subparsers(dest="picture", required=True)
    add = {name: pictures.add_parser(name).add_argument for name in ("record", "recording", "page")}
    add["record"]("--append", action="store_true", help="after the command that is there")
    add["record"]("command", nargs=argparse.REMAINDER)
    add["page"]("result", type=Path)
    given = parser.parse_args()
    if given.picture == "record":
        return record(given.command, IMAGES / "exec.jsonl", append=given.append)
    if given.picture == "page":
        page(given.result)
        return 0
    picture = recording((IMAGES / "exec.jsonl").read_text(encoding="utf-8"))
    (IMAGES / "exec.svg").write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
