"""Headless Chromium (Debian's package `chromium`) through the DevTools protocol on a pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Tab:
    """One page in a browser.

    Attributes:
        problems: what the page's console and its scripts complained of.
        asked: URLs that it asked for.
    """

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self.problems: list[str] = []
        self.asked: list[str] = []
        self._process = process
        self._to, self._back = to, back
        self._buffer = b""
        self._id = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._id:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def size(self, width: int, height: int, *, scale: float = 1, dark: bool = False) -> None:
        """The window's size in CSS pixels, and the system's colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def eval(self, script: str) -> Any:
        """The value of an expression in the page, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 20.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + timeout_s
        while True:
            if self.eval(f"!!({script})"):
                return
            assert time.monotonic() < end, (script, self.problems, self.eval("document.body.innerText"))
            time.sleep(0.03)

    def press(self, key: str) -> None:
        """A key, as a user presses it."""
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Tab": 9, " ": 32}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                text=text if kind == "keyDown" else "",
                windowsVirtualKeyCode=codes.get(key, 0),
            )

    def screenshot(self, file: Path) -> None:
        """What is seen, as PNG."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._back, 1 << 20)
            assert data, f"Chromium ended with {self._process.wait(10)}"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.problems.append(f"{params['entry']['level']}: {params['entry']['text']}")
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.problems.append(f"dialog: {params['message']}")


@contextlib.contextmanager
def chromium() -> Iterator[Tab]:
    """A tab of a browser of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        to_read, to = os.pipe()
        back, back_write = os.pipe()

        def wire() -> None:  # Chromium reads commands from 3 and answers on 4
            os.dup2(to_read, 63)
            os.dup2(back_write, 64)
            os.dup2(63, 3)
            os.dup2(64, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        process = subprocess.Popen(
            ["chromium", *_FLAGS, f"--user-data-dir={folder}"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(back_write)
        try:
            yield Tab(process, to, back)
        finally:
            process.terminate()
            process.wait(20)
            os.close(to)
            os.close(back)
