"""Fixtures for every test: the shared real files, and tools that a test needs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / "tests"))

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and by all that the tests start

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
"""Where an example takes long, or the making of one, the machine is busy: no test fails for that."""


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Journals and locks of these tests lie where no other run on this machine looks for any; nor are their runs those
    of somebody's history."""
    os.environ["PROFRUN_STATE"] = str(tmp_path_factory.mktemp("state"))
    os.environ.pop("PROFRUN_HISTORY", None)


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of a new user, who is not root."""
    from somebody import new_home

    with new_home() as path:
        yield path


TRACEPOINTS = Path("/sys/kernel/tracing")


@pytest.fixture(scope="session")
def tracepoints() -> None:
    """The kernel's, for perf. Nothing has mounted them in a chroot or on a minimal machine until perf's own first use,
    which leaves them there, as this does."""
    if os.geteuid() == 0 and TRACEPOINTS.is_dir() and not (TRACEPOINTS / "events").is_dir():
        subprocess.run(["mount", "-t", "tracefs", "nodev", str(TRACEPOINTS)], check=False)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real files beside the repository."""
    folder = REPO.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no shared files at {folder}")
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    """Our own recorded tool output."""
    return REPO / "tests" / "golden"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of real tools and programs runs once more before it fails: they come late on a busy machine. -ra tells."""
    for item in items:
        if item.get_closest_marker("tool") or "real" in item.path.parts:
            item.add_marker(pytest.mark.flaky(reruns=1))


OFF_PATH = Path("/usr/lib/postgresql")
"""Where Debian keeps the programs of a server, a folder a version."""


def find_tool(name: str) -> str | None:
    places = [str(Path(sys.executable).parent), *map(str, sorted(OFF_PATH.glob("*/bin"), reverse=True))]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose tool is missing; where CI is set that is a failure, as CI installs the tools."""
    for mark in item.iter_markers("tool"):
        for name in mark.args:
            if find_tool(name) is None:
                explain = f"{name} is not on this machine"
                (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(explain)
