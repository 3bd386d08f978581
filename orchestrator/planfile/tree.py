"""A tree of values that remember where they were written: merging, setting one value, naming a path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

LIMIT_DEPTH = 50

Scalar: TypeAlias = bool | int | float | str | None
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where something was written. `line` counts from 1; None where there are no lines."""

    file: str
    line: int | None


@dataclass(frozen=True)
class Node:
    """A value of the tree, and the place of its key or its list item."""

    value: Scalar | list[Node] | dict[str, Node]
    place: Place


def plain(node: Node) -> Any:
    """The tree as dicts, lists and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def merge(base: Node, over: Node) -> Node:
    """`over` on top of `base`: mappings are merged, everything else is replaced."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    merged = dict(base.value)
    for key, child in over.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return Node(merged, over.place)


def places(node: Node, path: Path = ()) -> Iterator[tuple[Path, Place]]:
    """Every path of the tree with the place where it was written."""
    yield path, node.place
    if isinstance(node.value, dict):
        for key, below in node.value.items():
            yield from places(below, (*path, key))
    elif isinstance(node.value, list):
        for index, item in enumerate(node.value):
            yield from places(item, (*path, index))


def child(node: Node, part: str | int) -> Node | None:
    """What stands there under that key or index, or None."""
    if isinstance(node.value, dict):
        return node.value.get(str(part))
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def path_text(path: Path) -> str:
    """("collectors", 2, "rate") as collectors[2].rate"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


# ---------------------------------------------------------------- --set a.b[2].c=value

_STEP = re.compile(r"\.?([^.\[\]=]+)|\[([0-9]+)\]")


def parse_path(text: str) -> Path:
    """a.b[2].c as ("a", "b", 2, "c"). Raises ValueError."""
    path: list[str | int] = []
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None or (position == 0 and text[0] in ".["):
            raise ValueError("is no path; write it like target.timeout or collectors[0].rate")
        path.append(step[1] if step[2] is None else int(step[2]))
        position = step.end()
    if not path:
        raise ValueError("has no name before the =; write it like target.timeout=30m")
    if len(path) > LIMIT_DEPTH:
        raise ValueError(f"is more than {LIMIT_DEPTH} keys deep")
    return tuple(path)


def concrete(node: Node, path: Path, done: Path = ()) -> Path:
    """The path with list items by index, where it may name them by their `use`, also inside `together`.

    Raises ValueError that says why there is no such place. Keys that do not exist yet are taken as they are.
    """
    if not path:
        return done
    if isinstance(node.value, list):
        inside = _item(node.value, path[0], done)
        item = reduce(lambda at, part: child(at, part) or at, inside, node)
        return concrete(item, path[1:], (*done, *inside))
    if not isinstance(node.value, dict) and node.value is not None:
        raise ValueError(f"{path_text(done)} is a single value and holds no {path[0]}")
    key = str(path[0])
    return concrete(child(node, key) or Node(None, node.place), path[1:], (*done, key))


def assign(node: Node, path: Path, value: Node) -> Node:
    """The tree with `value` at a concrete path; mappings that are missing on the way are made."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(node.value, list) and isinstance(step, int):
        items = list(node.value)
        items[step] = assign(items[step], rest, value)
        return Node(items, node.place)
    children = dict(node.value) if isinstance(node.value, dict) else {}
    children[str(step)] = assign(children.get(str(step), Node(None, value.place)), rest, value)
    return Node(children, node.place)


def relocated(node: Node, place: Place) -> Node:
    """The same tree as if all of it had been written at `place`."""
    if isinstance(node.value, dict):
        return Node({key: relocated(child, place) for key, child in node.value.items()}, place)
    if isinstance(node.value, list):
        return Node([relocated(child, place) for child in node.value], place)
    return Node(node.value, place)


def _item(items: list[Node], wanted: str | int, done: Path) -> Path:
    """The path, inside the list, of the item with that index or that `use`."""
    if isinstance(wanted, int) or wanted.isdecimal():
        if int(wanted) < len(items):
            return (int(wanted),)
        raise ValueError(f"{path_text(done)} has {len(items)} items, counted from 0")
    named = list(_uses(items))
    matches = [inside for use, inside in named if use == wanted]
    if len(matches) == 1:
        return matches[0]
    if matches:
        choices = ", ".join(path_text((*done, *inside)) for inside in matches)
        raise ValueError(f"{path_text(done)} has {wanted} more than once: write one of {choices}")
    raise ValueError(f"{path_text(done)} has no {wanted}; it has {', '.join(use for use, _ in named) or 'nothing'}")


def _uses(items: list[Node]) -> Iterator[tuple[str, Path]]:
    for index, item in enumerate(items):
        if not isinstance(item.value, dict):
            continue
        use, group = item.value.get("use"), item.value.get("together")
        if use is not None and isinstance(use.value, str):
            yield use.value, (index,)
        if group is not None and isinstance(group.value, list):
            for name, inside in _uses(group.value):
                yield name, (index, "together", *inside)
