"""How soon the report's page shows the flame graph of very many stacks, beside the page of speedscope: both are files
that hold all they need, and are opened in the same Chromium, in turns. speedscope comes from npm, for this only."""

from __future__ import annotations

import base64
import contextlib
import gzip
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parsebench.frame import Unable, generated

STACKS, SAMPLES = 100_000, 1_000_000
USUAL_SHARE = 0.02
"""Of these, what a usual run has: ten minutes at 100 samples a second have 60,000, of far fewer stacks."""
LEAST_RATIO = 10.0
MOST_HEAP_BYTES = 100_000_000
MOST_USUAL_BYTES = 3_000_000
LIMIT_S = 300.0
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--js-flags=--max-old-space-size=8192")

READY = "document.documentElement.dataset.ready && performance.now()"
SPEEDSCOPE_READY = """(async () => {
  if (!window.speedscope?.loadFileFromBase64) return false;
  if (!window.given) {
    window.given = true;
    speedscope.loadFileFromBase64("stacks.json", document.getElementById("stacks").textContent);
  }
  if (document.title === "speedscope" || !document.querySelector("canvas")) return false;
  for (const _ of "12") await new Promise(requestAnimationFrame);
  return performance.now();
})()"""
WAITING = """(() => {{
  const look = async () => {{ window.readyAfter = await ({ready}); if (!window.readyAfter) setTimeout(look, 10); }};
  addEventListener("DOMContentLoaded", look);
}})()"""


@dataclass
class Page:
    """A page and what was measured at it: time from the navigation until it is drawn, and the heap at that time."""

    name: str
    path: Path
    ready: str
    ready_s: list[float] = field(default_factory=list)
    heap_bytes: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        return statistics.median(self.ready_s)

    @property
    def heap(self) -> float:
        return statistics.median(self.heap_bytes)

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def cells(self, goal: str) -> tuple[str, ...]:
        spread = f"{min(self.ready_s):.2f} to {max(self.ready_s):.2f}"
        return (
            self.name,
            f"{self.median_s:.2f} s",
            spread,
            f"{self.heap / 1e6:,.0f} MB",
            f"{self.size / 1e6:.2f} MB",
            goal,
        )


HEADINGS = ("", "ready", "range", "JS heap", "file", "goal")


def run(scratch: Path, scale: float, turns: int) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of the table, and whether all goals were met. Raises Unable where something is missing."""
    great, stacks = report_page(scratch / "great", scale)
    usual, _ = report_page(scratch / "usual", scale * USUAL_SHARE)
    ours = Page(f"the report's page, {STACKS * scale:,.0f} stacks", great, READY)
    small = Page(f"the report's page, {STACKS * scale * USUAL_SHARE:,.0f} stacks", usual, READY)
    theirs = Page("speedscope's page, the same stacks", speedscope_page(scratch, stacks), SPEEDSCOPE_READY)
    for _ in range(turns):
        for page in (theirs, ours, small):
            measure(page)
    ratio = statistics.median(b / a for a, b in zip(ours.ready_s, theirs.ready_s, strict=True))
    goals = {
        f"{ratio:.1f}x sooner, at least {LEAST_RATIO:g}x": ratio >= LEAST_RATIO,
        f"heap at most {MOST_HEAP_BYTES / 1e6:g} MB": ours.heap <= MOST_HEAP_BYTES,
        f"at most {MOST_USUAL_BYTES / 1e6:g} MB": small.size <= MOST_USUAL_BYTES,
    }
    told = [f"{'met' if met else 'MISSED'}: {goal}" for goal, met in goals.items()]
    return [theirs.cells(""), ours.cells("; ".join(told[:2])), small.cells(told[2])], all(goals.values())


# ---------------------------------------------------------------- the pages


def report_page(folder: Path, scale: float) -> tuple[Path, Any]:
    """A report of these stacks alone, rendered as any other is; and its stacks."""
    import pyarrow.parquet as parquet

    from orchestrator import tables
    from orchestrator.formats import folded
    from orchestrator.model import Outcome
    from orchestrator.render import flamegraph, html
    from orchestrator.report import Report, RunInfo, TableInfo

    (folder / "tables").mkdir(parents=True)
    generated("gen_folded.py", folder / "stacks.folded", max(100, int(STACKS * scale)), max(100, int(SAMPLES * scale)))
    infos = {}
    for table in folded.read(folder / "stacks.folded", "wall").tables:
        table.columns["capture"] = ["stacks"] * len(table)
        infos[table.name] = TableInfo(f"tables/{table.name}.parquet", len(table))
        parquet.write_table(tables.arrow(table.name, [table]), folder / infos[table.name].path)
    run = RunInfo("bench", "bench", "2026-01-01T00:00:00Z", 1.0, ("true",), "/", "0")
    report = Report(run, Outcome("ok", 0, ""), {}, tables=infos, folder=folder)
    started = time.perf_counter()
    page = folder / "index.html"
    page.write_text(html.render(report), encoding="utf-8")
    print(f"rendered the page of {infos['stacks'].rows:,} stacks in {time.perf_counter() - started:.1f} s", flush=True)
    frame = report.table("stacks")
    return page, flamegraph.Stacks.of_table(frame) if frame is not None else None


def speedscope_page(scratch: Path, stacks: Any) -> Path:
    """speedscope's own program and the stacks in one file, as it makes for its command line."""
    from orchestrator.render import flamegraph

    released = speedscope(scratch)
    code, style = (next(released.glob(f"speedscope-*.{kind}")).read_text() for kind in ("js", "css"))
    data = base64.b64encode(gzip.compress(flamegraph.speedscope(stacks, "stacks").encode())).decode()
    page = scratch / "speedscope.html"
    safe = code.replace("</script", "<\\/script")
    page.write_text(
        f"<!doctype html><meta charset=utf-8><title>speedscope</title><style>{style}</style>"
        f"<body><script type=text/plain id=stacks>{data}</script>"
        # tells it that a file will be given, as its command line does
        f"<script>location.hash = 'localProfilePath=data:,'</script><script>{safe}</script>",
        encoding="utf-8",
    )
    return page


def speedscope(scratch: Path) -> Path:
    """The folder with its released program."""
    if not shutil.which("npm"):
        raise Unable("npm is not there: it fetches speedscope")
    packed = subprocess.run(["npm", "pack", "speedscope"], cwd=scratch, capture_output=True, text=True)
    if packed.returncode:
        raise Unable(f"npm could not fetch speedscope: {packed.stderr.strip()[-200:]}")
    with tarfile.open(scratch / packed.stdout.split()[-1]) as archive:
        archive.extractall(scratch / "speedscope", filter="data")
    return scratch / "speedscope" / "package" / "dist" / "release"


# ---------------------------------------------------------------- measuring


def measure(page: Page) -> None:
    """Opens it once more, in a browser that has seen nothing yet."""
    with opened(page) as tab:
        page.ready_s.append(ready_ms(tab, page) / 1e3)
        heap = tab.context.new_cdp_session(tab).send("Runtime.getHeapUsage")
        page.heap_bytes.append(heap["usedSize"] + heap["backingStorageSize"])


def ready_ms(tab: Any, page: Page) -> float:
    """Asked for now and then. Playwright's own waiting would need what the page's policy forbids."""
    give_up_s = time.monotonic() + LIMIT_S
    while not (ready := tab.evaluate("window.readyAfter")):
        if time.monotonic() > give_up_s:
            raise Unable(f"{page.name} was not ready within {LIMIT_S:g} s")
        time.sleep(0.05)
    return float(ready)


@contextlib.contextmanager
def opened(page: Page) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(CHROMIUM_FLAGS))
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.add_init_script(WAITING.format(ready=page.ready))
        tab.goto(page.path.as_uri(), wait_until="commit", timeout=LIMIT_S * 1e3)
        yield tab
        browser.close()
