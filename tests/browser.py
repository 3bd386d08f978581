"""A real Chromium for tests, driven by Playwright: one tab with a profile of its own, in which nothing is forgiven."""

from __future__ import annotations

import atexit
import contextlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Frame, Playwright, Request, sync_playwright
from waiting import LIMIT_S, until

FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb")


@cache
def _playwright() -> Playwright:
    """One for all browsers of this process: it admits no second, also where a start has failed half-way."""
    started = sync_playwright().start()
    atexit.register(started.stop)
    return started


class Browser:
    """`page` is Playwright's. `errors` and `requests`: what the console complains of, and what was asked for, since the
    page was opened; without the requests that its own policy refused."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._chromium = _playwright().chromium.launch(executable_path=shutil.which("chromium"), args=[*FLAGS])
        self.page = self._chromium.new_page(viewport={"width": width, "height": height})
        self.page.set_default_timeout(1000 * LIMIT_S)
        self._frame = self.page.main_frame
        self._devtools = self.page.context.new_cdp_session(self.page)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._failed)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _failed(self, request: Request) -> None:
        if request.failure == "csp":
            self.requests.remove(request.url)

    def open(self, path: Path | str) -> None:
        """Opens the file, or the address, and waits until its script says that it is ready."""
        self.errors.clear()
        self.requests.clear()
        self.page.goto(path if isinstance(path, str) else path.as_uri())
        self.ready()

    def ready(self) -> None:
        until(lambda: self.js("document.documentElement.dataset.ready"))

    @contextlib.contextmanager
    def inside(self, start: str) -> Iterator[None]:
        """Meanwhile `js` goes to another tab, or to a frame, whose address begins so."""
        here = self._frame

        def frames() -> list[Frame]:
            return [f for page in self.page.context.pages for f in page.frames if f.url.startswith(start)]

        self._frame = until(lambda: (self.page.wait_for_timeout(10), frames())[1])[0]
        try:
            yield
        finally:
            self._frame = here

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page (promises are waited for)."""
        return self._frame.evaluate(expression)

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of Chromium's DevTools protocol."""
        return self._devtools.send(method, parameters)

    def resize(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def prefer(self, scheme: str) -> None:
        """Makes the system prefer `light` or `dark`."""
        self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    def key(self, key: str) -> None:
        self.page.keyboard.press(key)

    def click(self, x: float, y: float) -> None:
        self.page.mouse.click(x, y)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        self.page.screenshot(path=path, full_page=whole)

    def close(self) -> None:
        self._chromium.close()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
