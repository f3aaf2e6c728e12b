"""A page in a real browser: Chromium without a window, run once for each picture or question."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 90
_RESULT = re.compile(r'<pre id="probe">(.*?)</pre>', re.DOTALL)
_CATCH = """<script>
const complaints = [];
addEventListener("error", (event) => complaints.push(event.message));
addEventListener("unhandledrejection", (event) => complaints.push(String(event.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => complaints.push(words.join(" "));
</script>"""
_PROBE = """<script>
(async () => {{
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
  const by = (id) => document.getElementById(id);
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}));
  const choose = (id, value) => {{ by(id).value = value; by(id).dispatchEvent(new Event("change")); }};
  let found;
  try {{ found = await (async () => {{ {body} }})(); }} catch (error) {{ complaints.push(String(error.stack)); }}
  const shown = document.createElement("pre");
  shown.id = "probe";
  shown.textContent = JSON.stringify({{ found: found ?? null, complaints }});
  document.body.append(shown);
}})();
</script>"""


def browser() -> str | None:
    """Path of Chromium; None: it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def probe(page: str, body: str, folder: Path, *, fragment: str = "", page_ms: int = 1000) -> Any:
    """Run statements of JavaScript in the page and give back what they return.

    Args:
        page: The HTML.
        body: Statements, in which `by(id)`, `press(key)`, `choose(id, value)` and `await sleep(ms)` are at hand.
        folder: For files of the browser.
        fragment: Of the address, after "#".
        page_ms: How long the statements sleep, at least; the page's clock stands while it computes.

    Raises:
        AssertionError: The page complained, or the statements failed.
    """
    watched = page.replace("<head>", f"<head>{_CATCH}", 1)
    watched = watched.replace("</body>", f"{_PROBE.format(body=body)}</body>", 1)
    done = _run(watched, folder, fragment, page_ms, "--dump-dom")
    result = _RESULT.search(done.stdout)
    assert result, f"the probe did not end: {done.stderr[-2000:]}"
    record = json.loads(unescape(result[1]))
    assert record["complaints"] == []
    return record["found"]


def picture(page: str, folder: Path, *, fragment: str = "", dark: bool = False) -> bytes:
    """The page as PNG, 1300 x 2200 pixels."""
    target = folder / "page.png"
    target.unlink(missing_ok=True)
    scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    done = _run(page, folder, fragment, 1000, f"--screenshot={target}", "--window-size=1300,2200", *scheme)
    assert "CONSOLE" not in done.stderr, done.stderr
    return target.read_bytes()


def _run(
    page: str, folder: Path, fragment: str, page_ms: int, *options: str
) -> subprocess.CompletedProcess[str]:
    path = browser()
    assert path, "no browser; the marker `browser` should have skipped this test"
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    command = [
        path,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--hide-scrollbars",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr",
        f"--virtual-time-budget={page_ms}",
        *options,
        f"{file.as_uri()}#{fragment}",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
