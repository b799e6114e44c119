"""A headless Chromium without a network, driven over its debugging pipe; nothing to install."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0


def found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One page. ``requests`` and ``failures`` hold what it asked for since it was opened."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, self._out = os.pipe()
        self._in, to_us = os.pipe()

        def fds() -> None:  # the browser reads commands from 3 and writes answers to 4
            read, write = os.dup(from_us), os.dup(to_us)
            os.dup2(read, 3)
            os.dup2(write, 4)

        command = [str(found()), *ARGUMENTS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=fds,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self._buffer, self._last, self._session = b"", 0, None
        self.requests: list[str] = []
        self.failures: list[str] = []
        self._loaded = False
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self._heard(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], PATIENCE)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def _heard(self, event: dict[str, Any]) -> None:
        data = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(data["request"]["url"])
            case "Network.loadingFailed":
                self.failures.append(f"{data['type']}: {data['errorText']}")
            case "Runtime.exceptionThrown":
                self.failures.append(json.dumps(data["exceptionDetails"]))
            case "Log.entryAdded" if data["entry"]["level"] == "error":
                self.failures.append(data["entry"]["text"])

    def resize(self, width: int, height: int = 900, touch: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a page, and wait until it and its mathematics are there."""
        self.requests, self.failures, self._loaded = [], [], False
        self.call("Page.navigate", url=page.as_uri() + fragment)
        while not self._loaded:
            self._heard(self._next())
        self.run("window.MathJax?.startup?.promise ?? null")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it settles to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def middle(self, selector: str) -> tuple[float, float]:
        """Scrolls to an element; where its middle is on the screen."""
        return tuple(
            self.run(
                f"""(() => {{ const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{ block: "center", behavior: "instant" }});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
            )
        )

    def drag(self, selector: str, dx: float, dy: float, touch: bool = False) -> None:
        x, y = self.middle(selector)
        points = [(x + dx * k / 4, y + dy * k / 4) for k in range(5)]
        if touch:
            for kind, at in zip(("touchStart", *["touchMove"] * 4), points, strict=True):
                where = [{"x": at[0], "y": at[1]}]
                self.call("Input.dispatchTouchEvent", type=kind, touchPoints=where)
            self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            return
        for kind, at in zip(("mousePressed", *["mouseMoved"] * 4), points, strict=True):
            button = {"button": "left", "buttons": 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **button)
        released = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=at[0], y=at[1], **released)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def settle(self) -> None:
        """Events that the page has yet to handle."""
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))")
        time.sleep(0.02)
