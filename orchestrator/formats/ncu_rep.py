"""Reads .ncu-rep reports, of any version, through NVIDIA's package `ncu_report` in a process of its own.

No GPU is needed. What the package may do on a damaged file is said in standalone/ncu_rep.py."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator import process
from orchestrator.errors import ParseError
from orchestrator.formats.ncu_launch import Launch, Losses, Rule, number, readable, shape
from orchestrator.standalone import ncu_rep as reader

KINDS = {1: "ok", 2: "optimization", 3: "warning", 4: "error"}
"""MsgType of a rule's message."""
SCOPES = {1: "local", 2: "global"}
"""SpeedupType of its estimate."""

_MEMORY_BYTES = 1 << 30
_MEMORY_PER_BYTE = 16
"""Seen: 0.2 GB for the package itself, and ten bytes for each byte of the report."""
_TIME_S = 60.0
_TIME_S_PER_BYTE = 1e-6
_ANSWER_BYTES = 256 << 20


class Report:
    """A report, read once by `launches`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = Losses()

    def launches(self) -> Iterator[Launch]:
        """They count from 0, as ncu numbers them, lost ones included."""
        told, metrics, end = 0, [], None
        answer = _read(self.path)
        for line in _lines(answer.stdout):
            if "metrics" in line:
                metrics = [(sys.intern(name or ""), unit and sys.intern(unit)) for name, unit in line["metrics"]]
            elif "launch" in line:
                told += 1
                yield _launch(line, metrics)
            else:
                end = line
        self._judge(told, end, answer)

    def _judge(self, told: int, end: dict[str, Any] | None, answer: process.Answer) -> None:
        """Whether that was all. Raises ParseError when nothing could be read."""
        why = _why(end, answer)
        if told == 0:
            raise ParseError(f"{self.path.name} {why or 'is no report of ncu, or a damaged one: it names no kernel'}")
        if why:
            self.losses.damage.append(f"launches that could be read: {told}; {self.path.name} {why}")
            return
        ended = (end or {}).get("end", {})
        self.losses.launches = ended.get("lost", 0)
        if ended.get("cut") is not None:
            self.losses.damage.append(
                f"{self.path.name} is cut off or damaged from byte {ended['cut']} on: what follows is lost"
            )
        if self.losses.launches:
            self.losses.damage.append(f"damaged launches of {self.path.name} that are left out: {self.losses.launches}")


def _why(end: dict[str, Any] | None, answer: process.Answer) -> str | None:
    """Why NVIDIA's reader did not come to its end; None when it did."""
    if end and "error" in end:
        return f"is no readable report of ncu: {end['error']}"
    if answer.exit is not None and answer.exit.signal is not None:
        return f"is a damaged report of ncu: NVIDIA's reader was {answer.exit.describe()}"
    if answer.error:
        return f"can't be read: NVIDIA's reader: {answer.error}"
    if end is None:
        return f"is a damaged report of ncu: NVIDIA's reader ended early ({_gist(answer.stderr)})"
    return None


def _gist(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "without a word"


def _read(path: Path) -> process.Answer:
    package = importlib.util.find_spec("ncu_report")
    if package is None or package.origin is None:
        raise ParseError(f"{path.name} needs NVIDIA's reader: {sys.executable} -m pip install ncu-report")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ParseError(f"{path.name} is no readable report of ncu: {error.strerror}") from error
    limit_s = _TIME_S + _TIME_S_PER_BYTE * size
    limits = (_MEMORY_BYTES + _MEMORY_PER_BYTE * size, int(limit_s), _ANSWER_BYTES)
    words = (str(path.absolute()), str(Path(package.origin).parent.parent), *map(str, limits))
    return process.ask(
        [sys.executable, "-I", "-S", reader.__file__, *words], timeout_s=limit_s, answer_bytes=_ANSWER_BYTES
    )


def _lines(text: str) -> Iterator[dict[str, Any]]:
    """The reader's lines; one that was broken off is none."""
    at = 0
    while (after := text.find("\n", at)) >= 0:
        yield json.loads(text[at:after])
        at = after + 1


def _launch(line: dict[str, Any], metrics: list[tuple[str, str | None]]) -> Launch:
    values = {name: (number(v), unit or None) for (name, unit), v in zip(metrics, line["values"], strict=True)}
    return Launch(
        number=line["launch"],
        pid=None,
        kernel=sys.intern(line["demangled"] or line["function"]),
        short_name=sys.intern(line["function"]),
        grid=shape(values, "grid"),
        block=shape(values, "block"),
        gpu=line["texts"].get("device__attribute_display_name"),
        metrics=values,
        rules=tuple(_rule(rule) for rule in line["rules"]),
    )


def _rule(told: dict[str, Any]) -> Rule:
    text = ": ".join(part for part in (told["title"], readable(told["message"])) if part) or None
    return Rule(
        section=told["section"],
        rule=told["rule"],
        kind=KINDS.get(told["type"]),
        message=text,
        speedup_pct=number(told["speedup"]),
        scope=SCOPES.get(told["scope"]),
    )
