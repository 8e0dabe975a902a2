"""A page in a real headless Chromium, driven by the DevTools protocol over its websocket.

Invariant: the browser and its folder are gone when the block is left; what the page's console calls an error is kept.
"""

import base64
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.helpers.commands import wait_until
from tests.helpers.prefect_server import ANSWER_SECONDS, clean_environment, running

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# For what hangs, not for what is slow: there are machines on which everything takes four times as long.
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.2


@dataclass
class Page:
    """One tab. Scripts are expressions whose values are JSON-able, or promises of such."""

    connection: Connection
    errors: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._numbers)
        self.connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.connection.recv(WAIT_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {WAIT_SECONDS:.0f} s: {expression}\n{self.text()[:3000]}")
            time.sleep(POLL_SECONDS)  # a page renders when it likes, and tells nobody

    def wait_for_text(self, text: str) -> None:
        """Wait until a person would read this on the page."""
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def text(self) -> str:
        """All that a person reads on the page."""
        return str(self.evaluate("document.body.innerText"))

    def click(self, element: str) -> None:
        """Press the left button of the mouse on the middle of an element, a JavaScript expression."""
        self.wait_for(f"!!({element})")
        middle = self.evaluate(
            f"(() => {{ const element = {element}; element.scrollIntoView({{block: 'center', behavior: 'instant'}}); "
            "const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        where = {"x": middle[0], "y": middle[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def write(self, element: str, text: str) -> None:
        """Click into a field, and write into it as from a keyboard."""
        self.click(element)
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int, is_phone: bool = False) -> None:
        """Be a screen of this size, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def take_picture(self) -> bytes:
        """A PNG of what the screen shows."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the page's console would show in red."""
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        elif event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "assert"):
            self.errors.append(json.dumps(event["params"]["args"])[:500])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(json.dumps(event["params"]["entry"])[:500])


def find_chromium() -> str:
    """The program; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(PROGRAMS)} is on the PATH: install Debian's chromium")
    return found


@contextmanager
def browsing() -> Iterator[Page]:
    """A headless Chromium with one empty tab."""
    program = find_chromium()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as home:
        folder = Path(home)
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        with running(command, clean_environment() | {"HOME": home}, folder / "log") as process:
            port_file = folder / "DevToolsActivePort"
            assert wait_until(lambda: port_file.exists() and port_file.read_text().count("\n") > 0, process)
            port = port_file.read_text().splitlines()[0]
            tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False, timeout=ANSWER_SECONDS).json()
            url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            with connect(url, max_size=None, proxy=None) as connection:
                page = Page(connection)
                for domain in ("Page", "Runtime", "Log"):
                    page.call(f"{domain}.enable")
                yield page
