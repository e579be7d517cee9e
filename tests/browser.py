"""A real browser without a network: what a page looks like on a desk and on a phone, and what it asks for.

`CDC_LAKE_REQUIRE_BROWSER=1` turns a missing browser into a failure. Screenshots stay in `tests/artifacts`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

ARTIFACTS = Path(__file__).parent / "artifacts"
WIDTHS = {"desk": 1280, "phone": 390}
# Chromium draws no window narrower than 500 px, so the page stands in frames of exactly the wanted widths.
FRAMES = """<!doctype html><meta charset=utf-8><style>html,body{margin:0;background:#888}body{display:flex;gap:20px}
iframe{border:0;display:block;flex:none}</style>
<iframe id=desk src="page.html" width="1280" height="HEIGHT"></iframe>
<iframe id=phone src="page.html" width="390" height="HEIGHT"></iframe><pre id=found hidden></pre><script>
addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentDocument, width = frame.contentWindow.innerWidth;
    found[frame.id] = {
      width, scroll: inside.documentElement.scrollWidth, height: inside.documentElement.scrollHeight,
      wide: [...inside.querySelectorAll("body *:not(.away):not(thead *):not(thead)")]
        .filter(e => e.getBoundingClientRect().right > width + 0.5).map(e => e.tagName + "." + e.getAttribute("class")),
      fetched: frame.contentWindow.performance.getEntriesByType("resource").length,
      dark: frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches,
      drawings: [...inside.querySelectorAll("svg.spark, .chart svg")].filter(e => e.getBoundingClientRect().width > 40).length,
    };
  }
  document.querySelector("#found").textContent = JSON.stringify(found);
});
</script>"""


@dataclass(frozen=True)
class Seen:
    """A page at one width: `wide` are elements that stick out, `drawings` curves and charts that can be seen."""

    width: int
    scroll: int
    height: int
    wide: list[str]
    fetched: int
    dark: bool
    drawings: int


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        if os.environ.get("CDC_LAKE_REQUIRE_BROWSER"):
            pytest.fail("no chromium binary; on Debian: apt-get install chromium")
        pytest.skip("no chromium binary; on Debian: apt-get install chromium")
    return found


def look(
    chromium: str, folder: Path, html: str, name: str, scheme: Literal["light", "dark"], height: int
) -> Mapping[str, Seen]:
    """The page in both widths, and a screenshot `NAME-SCHEME.png`; asserts that the console stays empty."""
    (folder / "page.html").write_text(html, encoding="utf-8")
    frames = folder / "frames.html"
    frames.write_text(FRAMES.replace("HEIGHT", str(height)), encoding="utf-8")
    size = f"--window-size={sum(WIDTHS.values()) + 20},{height}"
    colours = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    ARTIFACTS.mkdir(exist_ok=True)
    shot = ARTIFACTS / f"{name}-{scheme}.png"
    _browse(chromium, frames, size, colours, f"--screenshot={shot}")
    assert shot.stat().st_size > 10_000
    dom = _browse(chromium, frames, size, colours, "--dump-dom")
    found = re.search(r'<pre id="found"[^>]*>(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, dom
    return {frame: Seen(**seen) for frame, seen in json.loads(found[1].replace("&gt;", ">")).items()}


def fits(seen: Mapping[str, Seen], scheme: str) -> None:
    """Assert that nothing sticks out, nothing is fetched, and the colours are those asked for."""
    assert seen.keys() == WIDTHS.keys()
    for frame, one in seen.items():
        assert one.wide == [], frame
        assert one.scroll == one.width == WIDTHS[frame]
        assert one.fetched == 0
        assert one.dark == (scheme == "dark")


def _browse(chromium: str, page: Path, *more: str) -> str:
    done = subprocess.run(
        [
            chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage",
            "--allow-file-access-from-files", "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking",
            f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=3000", "--enable-logging=stderr", *more,
            page.as_uri(),
        ],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert said == []
    return done.stdout
