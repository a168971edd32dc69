"""The README's picture, from a run's result: what each step gains.

    python docs/pictures.py RESULT_DIR [--out docs/images/report.png]

Needs a Chromium on the PATH. Prints the file's size; over 300 KB it exits with 1.
"""

import argparse
import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image  # comes with torchvision

from loadtune import load_result
from loadtune.report.page.write import write_page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from browser_rig import Browser  # noqa: E402, the tests' own way to a browser

LIMIT_BYTES = 300_000
WHOLE_PX = 20_000
"""Higher than the page, so that nothing scrolls."""


def shoot(browser: Browser, element: str, path: Path) -> None:
    """An element of the page, with a margin."""
    clip = browser.evaluate(
        f"""(() => {{
            const box = document.querySelector({element!r}).getBoundingClientRect();
            return {{ x: 0, y: Math.max(0, box.top + scrollY - 16), width: document.documentElement.clientWidth,
                      height: box.height + 32, scale: 1 }};
        }})()"""
    )
    shot = browser.call("Page.captureScreenshot", format="png", clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    few = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # rare colours are kept
    few.save(path, optimize=True)  # a third of the size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "report.png")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        page = write_page(load_result(arguments.result), Path(home) / "report.html")
        browser = Browser(Path(home))
        try:
            browser.open(page, width=1000, height=WHOLE_PX)
            shoot(browser, "#gains", arguments.out)
        finally:
            browser.end()
    size = arguments.out.stat().st_size
    print(f"{arguments.out}: {size / 1000:.0f} KB")
    return int(size > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
