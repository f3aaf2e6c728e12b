"""Pages in a real browser: Chromium without a window, told what to do over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LIMIT_S = 90.0
_SIZE = {"width": 1300, "height": 2200, "deviceScaleFactor": 1, "mobile": False}
_KEYS = {" ": "Space", "ArrowLeft": "ArrowLeft", "ArrowRight": "ArrowRight", "Home": "Home", "End": "End"}
_HELPERS = """
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const by = (id) => document.getElementById(id);
const choose = (id, value) => { by(id).value = value; by(id).dispatchEvent(new Event("change")); };
const until = async (reached) => { while (!reached()) await sleep(10); };
"""


def browser_path() -> str | None:
    """Path of Chromium; None: it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One running Chromium; use as a context."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self._rest, self._pages = folder, 0, b"", 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        path = browser_path()
        self._folder.mkdir(exist_ok=True)
        assert path, "no browser; the marker `browser` should have skipped this test"
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            # Tabs that nobody looks at go on drawing.
            "--disable-backgrounding-occluded-windows",
            "--disable-renderer-backgrounding",
            "--disable-background-timer-throttling",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={self._folder / 'profile'}",
            "--remote-debugging-pipe",
        ]
        # The pipe has to be files 3 and 4 of the browser.
        script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", path, *options],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.call("Browser.close")
                self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._to)
            os.close(self._from)

    @contextmanager
    def open(
        self, page: str, *, fragment: str = "", media: str = "", dark: bool = False, calm: bool = False
    ) -> Iterator[Tab]:
        """The page in a tab, loaded; it must not complain while it is open.

        Args:
            page: HTML of the page.
            fragment: End of the address, after "#".
            media: "print" shows it as on paper.
            dark: Whether the user prefers dark colours.
            calm: Whether the user prefers less motion.
        """
        self._pages += 1
        file = self._folder / f"page{self._pages}.html"
        file.write_text(page, encoding="utf-8")
        with self.tab(media=media, dark=dark, calm=calm) as tab:
            tab.visit(f"{file.as_uri()}#{fragment}")
            yield tab
            assert tab.complaints() == []

    @contextmanager
    def tab(
        self,
        *,
        width: int = _SIZE["width"],
        height: int = _SIZE["height"],
        media: str = "",
        dark: bool = False,
        calm: bool = False,
    ) -> Iterator[Tab]:
        """An empty tab, for `Tab.visit`.

        Args:
            width: Width of the window, in CSS pixels.
            height: Height of the window, in CSS pixels.
            media: "print" shows pages as on paper.
            dark: Whether the user prefers dark colours.
            calm: Whether the user prefers less motion.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call("Page.setLifecycleEventsEnabled", enabled=True)
        tab.call("Emulation.setDeviceMetricsOverride", **{**_SIZE, "width": width, "height": height})
        wishes = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if calm else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        tab.call("Emulation.setEmulatedMedia", media=media, features=features)
        yield tab
        self.call("Target.closeTarget", targetId=target)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and give back its result."""
        self._number += 1
        record = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            record["sessionId"] = session
        os.write(self._to, json.dumps(record).encode() + b"\0")
        for message in self._messages():
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._events.append(message)
        raise AssertionError("the browser ended")

    def events(self, session: str) -> list[dict[str, Any]]:
        """What a tab has told so far."""
        return [event for event in self._events if event.get("sessionId") == session]

    def visit(self, address: str, session: str) -> None:
        """Load an address in a tab, and wait for its load event."""
        # The empty page that a tab begins with has one too, which may come late.
        loader = self.call("Page.navigate", session, url=address)["loaderId"]

        def is_loaded(message: dict[str, Any]) -> bool:
            what = message.get("params", {})
            return message.get("method") == "Page.lifecycleEvent" and (
                (what["loaderId"], what["name"], message.get("sessionId")) == (loader, "load", session)
            )

        if any(map(is_loaded, self.events(session))):
            return
        for message in self._messages():
            self._events.append(message)
            if is_loaded(message):
                return

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            whole, end, rest = self._rest.partition(b"\0")
            if end:
                self._rest = rest
                yield json.loads(whole)
                continue
            ready = wait([self._from], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser said nothing for {_LIMIT_S} s"
            read = os.read(self._from, 1 << 20)
            assert read, "the browser ended"
            self._rest += read


class Tab:
    """A page that is open."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol for this page."""
        return self._browser.call(method, self._session, **parameters)

    def visit(self, address: str) -> None:
        """Load an address, and wait for its load event."""
        self._browser.visit(address, self._session)

    def run(self, body: str) -> Any:
        """What statements of JavaScript return.

        At hand are `by(id)`, `choose(id, value)`, `await sleep(ms)` and `await until(reached)`.
        """
        expression = f"(async () => {{ {_HELPERS} {body} }})()"
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        more = {"text": key} if len(key) == 1 else {}
        code = _KEYS.get(key, "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code)

    def point(self, element: str, x: float, y: float) -> None:
        """Move the pointer to a place of an element, in parts of its size."""
        box = self.run(f"""
        by({element!r}).scrollIntoView({{ block: "center" }});
        const box = by({element!r}).getBoundingClientRect();
        return [box.x + box.width * {x}, box.y + box.height * {y}];
        """)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def picture(self) -> bytes:
        """What is shown, as PNG."""
        self.run(
            "for (let n = 0; n < 2; n++) await new Promise((drawn) => requestAnimationFrame(drawn)); await sleep(50);"
        )
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def pages(self) -> bytes:
        """The page on paper, as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def complaints(self) -> list[str]:
        """Errors and warnings of the console so far, and loads from elsewhere."""
        found = []
        for event in self._browser.events(self._session):
            what = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(what["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                found.append(what["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in (
                "error",
                "warning",
                "assert",
            ):
                found.append(str(what["args"]))
            elif event["method"] == "Network.requestWillBeSent" and not what["request"]["url"].startswith(
                ("file:", "data:")
            ):
                found.append(f"loads {what['request']['url']}")
        return found
