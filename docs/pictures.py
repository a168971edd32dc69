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


def gpu_idle() -> None:
    """Those of docs/gpu-idle.md: ``cd docs; python -c "import pictures; pictures.gpu_idle()"``."""
    root = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(root / "tests")]
    from browser_rig import Browser  # the tests' own way to a browser

    from loadtune import load_result
    from loadtune.report.page.write import write_page

    box = "(({ top, height }) => ({ top, height }))(document.querySelector('#%s').getBoundingClientRect())"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        result = load_result(root / "benchmarks" / "results" / "2026-11-26-h200" / "jpeg")
        browser = Browser(Path(home))
        try:
            browser.open(write_page(result, Path(home) / "report.html"), width=1000)
            tall = {"width": 1000, "height": 20_000, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **tall)  # so that nothing scrolls
            for name in ("timelines", "roofline"):
                place = browser.evaluate(box % name)
                clip = {"x": 0, "y": place["top"], "width": 1000, "height": place["height"], "scale": 1}
                shot = browser.call("Page.captureScreenshot", format="png", clip=clip)
                path = root / "docs" / "images" / f"idle-{name}.png"
                path.write_bytes(base64.b64decode(shot["data"]))
        finally:
            browser.end()
