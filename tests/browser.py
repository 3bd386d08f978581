"""A real Chromium for tests, driven over a pipe with its DevTools protocol: no client library, no port, no network."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from waiting import LIMIT_S

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe", "--force-color-profile=srgb",
)  # fmt: skip


class Browser:
    """One page in a headless Chromium with a profile of its own. Collects console errors and the page's requests."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._profile = tempfile.mkdtemp(prefix="profrun-chromium-")
        self._serial = itertools.count(1)
        self._rest = b""
        self._target: str | None = None
        self.errors: list[str] = []
        self._asked: dict[str, str] = {}
        self._start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def _start(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        for end in (ours[1], theirs[0]):
            os.set_inheritable(end, False)
        # Chromium reads commands from descriptor 3 and answers on 4; high numbers keep these two out of the way.
        source, sink = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (ours[0], theirs[1]))
        argv = [str(shutil.which("chromium")), *FLAGS, f"--user-data-dir={self._profile}"]
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        moves = [(os.POSIX_SPAWN_DUP2, source, 3), (os.POSIX_SPAWN_DUP2, sink, 4), quiet]
        self._pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=moves, setsid=True)
        for fd in (ours[0], theirs[1], source, sink):
            os.close(fd)
        self._to, self._from = ours[1], theirs[0]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        serial = next(self._serial)
        message = {"id": serial, "method": method, "params": parameters}
        if self._target:
            message["sessionId"] = self._target
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + LIMIT_S
        while (answer := self._read(deadline)).get("id") != serial:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self._from, 1 << 20)
            if not piece:
                raise RuntimeError("Chromium ended")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        method, more = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self._asked[more["requestId"]] = more["request"]["url"]
        elif method == "Network.loadingFailed" and more.get("blockedReason") == "csp":
            del self._asked[more["requestId"]]
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(more["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(more["args"])[:500])
        elif method == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
            self.errors.append(more["entry"]["text"])

    @property
    def requests(self) -> list[str]:
        """What was asked for since the page was opened, without what its own policy refused."""
        return list(self._asked.values())

    def open(self, path: Path) -> None:
        """Opens the file and waits until its script says that it is ready; forgets the errors and requests before."""
        self.errors.clear()
        self._asked.clear()
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + LIMIT_S
        while not self.js("document.readyState === 'complete' && document.documentElement.dataset.ready"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the page is not ready: {self.errors}")
            time.sleep(0.05)

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page (promises are waited for)."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Makes the system prefer `light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def key(self, key: str) -> None:
        text = {"Enter": "\r", " ": " "}.get(key)
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        for fd in (self._to, self._from):
            os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
