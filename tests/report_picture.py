"""The picture of a report in README.md: `python -m tests.report_picture runs/<run id>/report.html` draws it.

Its words are in report.txt beside it, which a test compares with the code: they differ when the picture is out of date.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.browser.chromium import Chromium

PICTURE = Path(__file__).resolve().parents[1] / "examples" / "pictures" / "report.png"
WORDS = PICTURE.with_suffix(".txt")
WIDTH, HEIGHT = 1200, 1600
# The words of the report itself, without those of the run: the element that contains them, and the text.
SHOWN = """
[...document.querySelectorAll('nav a,.tiles dt,h2,caption > span,th,figcaption strong')].filter(
  one => one.textContent.trim() && one.getBoundingClientRect().bottom <= %d).map(
  one => `${one.localName}: ${one.textContent.trim()}`)
"""


def draw(report: Path) -> None:
    """Draw the top of this report, and write its words."""
    with TemporaryDirectory() as profile:
        browser = Chromium(Path(profile))
        try:
            with browser.as_wide_as(WIDTH), browser.preferring("light"):
                browser.open(report.resolve())
                words = browser.evaluate(SHOWN % HEIGHT)
                clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
                drawn = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        finally:
            browser.close()
    PICTURE.write_bytes(base64.b64decode(drawn["data"]))
    WORDS.write_text("\n".join(words) + "\n", "utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
