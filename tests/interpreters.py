"""Pythons of several versions, where this machine has them."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import pytest


@cache
def interpreter(version: str) -> str:
    """A real Python of that version, of pyenv's or on PATH."""
    homes = (Path(os.environ.get("PYENV_ROOT", "/")), Path.home() / ".pyenv")
    found = sorted(str(p) for home in homes for p in home.glob(f"versions/{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}") or ""
    if not found and (not on_path or "shims" in on_path):
        pytest.skip(f"no Python {version} on this machine")
    return found[-1] if found else on_path
