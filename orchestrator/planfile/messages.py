"""What pydantic finds wrong with a plan, in plain words, with the line where it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from orchestrator import registry
from orchestrator.collectors.base import Collector
from orchestrator.env_steps.base import Step
from orchestrator.errors import Problem
from orchestrator.launchers.base import Launcher
from orchestrator.plan import Together, closest, suggestion
from orchestrator.planfile.tree import Node, Path, Place, child, path_text, plain

MISSING = "is missing"
_NEEDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "dict": "keys and values",
    "model": "keys and values",
}
_MISSING: Mapping[Path, str] = {
    ("version",): "add version: 1",
    ("collectors",): "add a list, such as [{use: timing}]",
}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}


def problems(error: ValidationError, root: type[BaseModel], tree: Node) -> Iterator[Problem]:
    """One problem for each wrong place of the tree."""
    found: dict[Path, list[tuple[str, str]]] = {}
    instead: dict[Path, str] = {}
    data = plain(tree)
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue  # it only seems short, as items were refused; they are told themselves
        path = _path(detail["loc"], detail["type"], tree)
        instead[path] = detail.get("ctx", {}).get("instead", "")
        told = _told(detail, path, root, data)
        if told not in found.setdefault(path, []):
            found[path].append(told)
    for path, answers in found.items():
        place = _place(path, tree)
        message = ", or ".join(message for message, _ in answers)
        hint = next((hint for _, hint in answers if hint), "")
        yield Problem(place.file, place.line, path_text(path), message, hint, instead[path])


def _path(loc: Sequence[str | int], kind: str, tree: Node) -> Path:
    """The place in the tree: without what pydantic adds to a path, such as the branches of a union."""
    path: list[str | int] = []
    node = tree
    for part in loc:
        below = child(node, part)
        if below is not None:
            node = below
            path.append(part)
    return (*path, loc[-1]) if kind == "missing" else tuple(path)


def _place(path: Path, tree: Node) -> Place:
    """Where that value stands, or what it would stand in."""
    node = tree
    for part in path:
        below = child(node, part)
        if below is None:
            break
        node = below
    return node.place


# ---------------------------------------------------------------- messages


def _told(detail: Any, path: Path, root: type[BaseModel], data: Any) -> tuple[str, str]:
    """What is wrong, and how to write it."""
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "plan":
        return detail["msg"], context.get("hint", "")
    if kind == "extra_forbidden":
        return "unknown key", suggestion(str(path[-1]), sorted(_keys(path[:-1], root, data)))
    if kind == "missing":
        return MISSING, _MISSING.get(path, "")
    if kind == "literal_error":
        return _one_of(context["expected"], value)
    if kind in _BOUNDS:
        return f"must be {_BOUNDS[kind].format(**context)}, and is {_shown(value)}", ""
    if kind in ("too_short", "string_too_short"):
        return "is too short" if value else "is empty", f"it needs at least {context['min_length']}"
    if kind in ("value_error", "assertion_error"):
        return str(context["error"]), ""
    return _wrong_type(kind, value) or (detail["msg"], "")


def _wrong_type(kind: str, value: Any) -> tuple[str, str] | None:
    needs = _NEEDS.get(re.sub(r"_(type|parsing|from_float|parsing_size|attributes_type)$", "", kind))
    if needs is None:
        return None
    hint = ""
    if needs == "a list" and not isinstance(value, (dict, list)):
        hint = f"write [{_shown(value)}]" if value is not None else "write [] for none, or leave the key out"
    elif needs == "text" and isinstance(value, (int, float)):
        hint = f'write "{str(value).lower() if isinstance(value, bool) else value}"'
    return f"needs {needs}, not {_shown(value)}", hint


def _one_of(expected: str, value: Any) -> tuple[str, str]:
    """`expected` as pydantic writes it: 'a', 'b' or 'c'."""
    choices = re.findall(r"'([^']*)'", expected) or re.split(r", | or ", expected)
    meant = closest(value, choices) if isinstance(value, str) else ""
    wanted = ("write " if len(choices) == 1 else "one of ") + ", ".join(choices)
    return f"{_shown(value)} is not possible here", meant + wanted


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "keys and values"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None:
        return "nothing (null)"
    text = str(value) if type(value) in (int, float) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------- which keys there are


def _keys(path: Path, root: type[BaseModel], data: Any) -> set[str]:
    """The keys that the mapping at that path may have."""
    classes: list[type[BaseModel]] = [root]
    for part in path:
        data = data[part]
        if isinstance(part, str):
            fields = [f for cls in classes for name, f in cls.model_fields.items() if part in (name, f.alias)]
            classes = [cls for field in fields for cls in _models(field.annotation)]
        if isinstance(data, Mapping):
            classes = [meant for cls in classes if (meant := _meant(cls, data))]
    return {field.alias or name for cls in classes for name, field in cls.model_fields.items()}


def _models(annotation: Any) -> list[type[BaseModel]]:
    arguments = get_args(annotation)
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in arguments for model in _models(argument)]


def _meant(cls: type[BaseModel], data: Mapping[str, Any]) -> type[BaseModel] | None:
    """The class that this mapping is an item of; None where `cls` can't be it."""
    if cls is Together:
        return cls if "together" in data else None
    if cls is Collector:
        return None if "together" in data else registry.collector(data["use"])
    if cls is Launcher:
        return registry.launcher(data.get("use", "auto"))
    return registry.environment_step(data["use"]) if cls is Step else cls
