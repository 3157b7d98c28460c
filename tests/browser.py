"""Open a page in Chromium without a window, at two widths, and say what is wrong with it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_BROWSER = "no browser: install chromium (Debian: apt-get install chromium) to open the reports in it"
WIDTHS = (390, 1280)  # a phone and a laptop, in CSS pixels
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--virtual-time-budget=5000 --dump-dom"
)
# It runs first in the page, so it sees every error, and looks when everything is loaded.
PROBE = """<script>
(() => {
  const errors = [];
  window.addEventListener("error", (e) => errors.push(e.message || "a file is missing"), true);
  window.addEventListener("unhandledrejection", (e) => errors.push(String(e.reason)));
  console.error = (...words) => errors.push(words.join(" "));
  const scrolls = (element) => {
    for (let up = element.parentElement; up; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== "visible" && up !== document.body) return true;
    return false;
  };
  window.addEventListener("load", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
    const width = document.documentElement.clientWidth;
    const wide = [...document.body.querySelectorAll("*")]
      .filter((e) => e.getBoundingClientRect().right > width + 1 && !scrolls(e))
      .map((e) => e.tagName + " " + e.className + ": " + (e.textContent || "").trim().slice(0, 60));
    if (document.documentElement.scrollWidth > width + 1) wide.push("the page itself");
    let did = null;
    try { did = (ACTIONS)(); } catch (e) { errors.push(String(e)); }
    parent.postMessage({ width: innerWidth, errors, wide, did }, "*");
  });
})();
</script>"""
FRAMES = """<!DOCTYPE html><body><pre id="found"></pre><script>
const found = [];
addEventListener("message", (e) => {
  found.push(e.data);
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>%s</body>"""


def open_page(page: str, folder: Path, actions: str = "() => null") -> dict[int, dict[str, Any]]:
    """Open a page at every width of `WIDTHS`, each in a frame of its own.

    Returns, by width: `errors` on the console, the elements that are `wide`r than the page, and what the
    JavaScript function `actions` returned in the page.
    """
    probe = PROBE.replace("ACTIONS", actions)
    (folder / "page.html").write_text(page.replace("<head>", "<head>" + probe, 1), encoding="utf-8")
    frames = "".join(f'<iframe src="page.html" width="{w}" height="900"></iframe>' for w in WIDTHS)
    (folder / "frames.html").write_text(FRAMES % frames, encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, (folder / "frames.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found and found[1], f"the page did not load: {done.stderr[-500:]}"
    return {one.pop("width"): one for one in json.loads(unescape(found[1]))}
