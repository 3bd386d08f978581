"""From a template's name or a file's path to a Plan, with what it extends and every `--set`; and back to YAML."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator import registry, sharing
from orchestrator.collectors.base import Collector
from orchestrator.errors import PlanError, Problem, UsageError
from orchestrator.plan import Plan, Together, closest, collector_of, suggestion
from orchestrator.planfile import source
from orchestrator.planfile.tree import (
    Node,
    Place,
    assign,
    child,
    concrete,
    merge,
    parse_path,
    path_text,
    places,
    plain,
    relocated,
)
from orchestrator.sharing import Split

LIMIT_BYTES = 1_000_000
LIMIT_BASES = 10
LIMIT_PROBLEMS = 50
LIMIT_LINE = 300
_OF_ONE_FILE = ("name", "description")
"""Keys that speak of one file: a plan that extends it does not take them over."""


# ---------------------------------------------------------------- templates


@dataclass(frozen=True)
class Template:
    """A plan that comes with profrun."""

    name: str
    description: str
    path: Path


def profiles() -> Path:
    """The folder of the templates: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def _template_paths() -> dict[str, Path]:
    return {path.stem: path for path in sorted(profiles().glob("*.yaml"))}


def templates() -> list[Template]:
    """All templates by name."""
    return [Template(name, _description(path), path) for name, path in _template_paths().items()]


def _description(path: Path) -> str:
    tree, _ = source.read(path.read_bytes(), str(path))
    keys = tree.value if tree and isinstance(tree.value, dict) else {}
    return str(keys["description"].value) if "description" in keys else ""


def find(name: str, also: Sequence[str] = ()) -> Path:
    """The file of a plan: a path when it holds a slash or ends in .yaml or .yml, else a template.

    `also`: other words that may have been meant, such as commands. Raises UsageError for an unknown template.
    """
    if _is_path(name):
        return Path(name)
    known = _template_paths()
    if name in known:
        return known[name]
    meant = closest(name, [*known, *also])
    raise UsageError(
        f"there is no template {name!r}",
        "a plan is a template, or a file whose name holds a slash or ends in .yaml",
        f"write ./{name}" if name and Path(name).is_file() else f"{meant}templates: {', '.join(known)}",
    )


def _is_path(name: str) -> bool:
    return "/" in name or name.lower().endswith((".yaml", ".yml"))


def template_text(template: Path) -> str:
    """A template as `profrun init` copies it: the editor's line then points at the schema by its full path."""
    return template.read_text(encoding="utf-8").replace(
        "$schema=schema.json", f"$schema={profiles() / 'schema.json'}", 1
    )


# ---------------------------------------------------------------- loading


def load(path: Path | str, sets: Sequence[str] = (), *, auto_passes: bool = False) -> Plan:
    """The plan in that file, with what it extends and every `--set a.b=value`. Raises PlanError: all that is wrong.

    auto_passes: collectors that can't share the pass that they are given get several."""
    problems: list[Problem] = []
    tree = _with_bases(Path(path), problems, ())
    for text in sets:
        tree = _with_set(tree, text, problems)
    tree, splits = _split(_named(tree, Path(path))) if auto_passes else (_named(tree, Path(path)), ())
    plan = _checked(tree, problems)
    if plan is None or problems:
        raise PlanError(_in_order(problems), _SPLIT_THEM if any(problem.instead for problem in problems) else "")
    plan.source_map.update({path_text(where): (place.file, place.line) for where, place in places(tree) if where})
    return plan.with_items(plan.collectors, splits)


_SPLIT_THEM = "write those lines, or add --auto-passes: it makes the same passes of the plan as it stands"


def _with_bases(path: Path, problems: list[Problem], above: tuple[Path, ...]) -> Node:
    """The mapping in that file on top of what it extends. Raises PlanError where a file can't be read at all."""
    tree, found = source.read(_bytes(path), str(path))
    problems += found
    if tree is None or not isinstance(tree.value, dict):
        raise PlanError(_in_order(problems if tree is None else [*problems, _no_mapping(tree)]))
    base = _base(tree.value.get("extends"), path, (*above, path), problems)
    own = Node({key: child for key, child in tree.value.items() if key != "extends"}, tree.place)
    if base is None:
        return own
    below = _with_bases(base, problems, (*above, path))
    assert isinstance(below.value, dict)
    kept = {key: child for key, child in below.value.items() if key not in _OF_ONE_FILE}
    return merge(Node(kept, below.place), own)


def _base(extends: Node | None, path: Path, chain: tuple[Path, ...], problems: list[Problem]) -> Path | None:
    """The file that `extends` means, seen from the plan at `path`; None, with a problem, where that is none."""
    if extends is None or extends.value is None:
        return None
    try:
        base = _meant(extends.value, path.parent)
        _check_chain(base, chain)
    except UsageError as error:
        problems.append(Problem(str(path), extends.place.line, "extends", error.what, error.next_step))
        return None
    return base


def _meant(name: Any, folder: Path) -> Path:
    if not isinstance(name, str):
        raise UsageError("needs the name of a template, or a path", "", "extends: cpu-quick")
    if not _is_path(name):
        return find(name)
    if not os.path.lexists(folder / name):
        raise UsageError(f"there is no file {folder / name}", "", "a path is looked up from the file that names it")
    return folder / name


def _check_chain(base: Path, chain: tuple[Path, ...]) -> None:
    names = " > ".join(str(path) for path in (*chain, base))
    if any(os.path.realpath(base) == os.path.realpath(path) for path in chain):
        raise UsageError(f"goes round in a circle: {names}")
    if len(chain) > LIMIT_BASES:
        raise UsageError(f"more than {LIMIT_BASES} plans stand on top of one another: {names}")


def _bytes(path: Path) -> bytes:
    """The file's content. Never more than the limit is read, also of what has no size."""
    try:
        with path.open("rb") as file:
            about, data = os.fstat(file.fileno()), file.read(LIMIT_BYTES)
    except FileNotFoundError:
        raise _unreadable(
            path, "there is no such file", "profrun templates lists the plans that come with profrun"
        ) from None
    except IsADirectoryError:
        raise _unreadable(path, "is a folder, not a plan", "name a file in it") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"can't be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) == LIMIT_BYTES:
        size = f"{about.st_size / 1e6:.1f} MB" if stat.S_ISREG(about.st_mode) else "1 MB or more"
        raise _unreadable(path, f"is {size} long; a plan is shorter than 1 MB", "is it the right file?")
    return data


def _unreadable(path: Path, message: str, hint: str = "") -> PlanError:
    return PlanError([Problem(str(path), None, "", message, hint)])


def _no_mapping(tree: Node) -> Problem:
    if tree.value is None:
        return Problem(tree.place.file, None, "", "is empty", "profrun init cpu-quick writes a plan to start from")
    found = "a list" if isinstance(tree.value, list) else "a single value"
    hint = "a plan is keys and values, the first of them version: 1"
    return Problem(tree.place.file, tree.place.line, "", f"holds {found}", hint)


def _named(tree: Node, path: Path) -> Node:
    """A plan without a name of its own is called as its file is, in characters that fit every file system."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._")[:64]
    name = Node(stem or "plan", Place(str(path), None))
    return merge(Node({"name": name}, tree.place), tree)


def _checked(tree: Node, problems: list[Problem]) -> Plan | None:
    """The plan, or None with the problems added; a value that is known to be wrong already is not blamed twice."""
    try:
        return Plan.model_validate(plain(tree))
    except ValidationError as error:
        from orchestrator.planfile import messages

        known = {problem.path for problem in problems if problem.path}
        told = messages.problems(error, Plan, tree)
        if "extends" in known:  # what seems to be missing may well stand there
            told = (problem for problem in told if problem.message != messages.MISSING)
        problems += (problem for problem in told if problem.path not in known)
        return None


def _in_order(problems: list[Problem]) -> list[Problem]:
    """By file and line, as an editor walks them; beyond a limit only counted."""
    files = list(dict.fromkeys(problem.file for problem in problems))
    ordered = sorted(map(_presentable, problems), key=lambda problem: (files.index(problem.file), problem.line or 0))
    more = len(ordered) - LIMIT_PROBLEMS
    rest = [Problem(ordered[-1].file, None, "", f"and {more} more")] if more > 0 else []
    return ordered[:LIMIT_PROBLEMS] + rest


def _presentable(problem: Problem) -> Problem:
    """On one line of bearable length, whatever a value that it quotes may hold."""
    return replace(problem, path=_line(problem.path), message=_line(problem.message), hint=_line(problem.hint))


def _line(text: str) -> str:
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[:LIMIT_LINE])
    return shown if len(text) <= LIMIT_LINE else shown + "..."


# ---------------------------------------------------------------- --set


def _with_set(tree: Node, text: str, problems: list[Problem]) -> Node:
    """The tree with `a.b=value` in it."""
    name, sign, written = text.partition("=")
    try:
        if not sign:
            raise ValueError("has no value; write it like target.timeout=30m")
        path = concrete(tree, parse_path(name.strip()))
        if path[0] == "extends":
            raise ValueError("can't be set, as the plan is read by then: name the plan to start from instead")
        value, found = source.read(written, "--set")
        problems += (replace(p, line=None, path=_joined(path_text(path), p.path)) for p in found)
        if value is None:
            return tree
        if isinstance(value.value, (dict, list)) and written.lstrip()[:1] not in ("{", "["):
            raise ValueError("needs its value in quotes, as it holds signs that mean something in YAML")
        return assign(tree, path, relocated(value, Place("--set", None)))
    except ValueError as error:
        problems.append(Problem("--set", None, name.strip() or text, str(error)))
        return tree


def _joined(path: str, inside: str) -> str:
    return path + inside if inside.startswith("[") else f"{path}.{inside}".rstrip(".")


# ---------------------------------------------------------------- --auto-passes


def _split(tree: Node) -> tuple[Node, tuple[Split, ...]]:
    """The tree with several passes in place of each `together` whose collectors can't share one."""
    listed = child(tree, "collectors")
    if listed is None or not isinstance(listed.value, list):
        return tree, ()
    items: list[Node] = []
    splits: list[Split] = []
    for item in listed.value:
        members, nodes = _members(item)
        parts = sharing.passes(members)
        if len(parts) < 2:
            items.append(item)
            continue
        where = item.place.file + (f":{item.place.line}" if item.place.line else "")
        splits.append(Split(len(items), members, where))
        left = list(zip(members, nodes, strict=True))
        for part in parts:
            inside = [node for member, node in left if any(member is one for one in part)]
            shared = Node({"together": Node(list(inside), item.place)}, item.place)
            items.append(shared if len(inside) > 1 else inside[0])
    return assign(tree, ("collectors",), Node(items, listed.place)), tuple(splits)


def _members(item: Node) -> tuple[tuple[Collector, ...], list[Node]]:
    """The collectors of a `together`, and where they stand; none where it is wrong, which is told later."""
    inside = child(item, "together")
    if inside is None or not isinstance(inside.value, list):
        return (), []
    try:
        return tuple(collector_of(plain(node)) for node in inside.value), inside.value
    except ValueError:
        return (), []


# ---------------------------------------------------------------- choosing, writing


def completed(plan: Plan, only: Sequence[str]) -> Plan:
    """The plan, and with their defaults those of the chosen collectors that exist but that it does not have."""
    names = dict.fromkeys(name.strip() for text in only for name in text.split(","))
    there = {word for collector in plan.each_collector() for word in (collector.use, collector.label())}
    more = [name for name in names if name not in there and name in registry.collector_names()]
    added = (registry.collector(name).model_validate({"use": name}) for name in more)
    return plan.model_copy(update={"collectors": (*plan.collectors, *added)})


def select(plan: Plan, only: Sequence[str] = (), skip: Sequence[str] = ()) -> Plan:
    """The plan with a part of its collectors, also inside `together`. A name is a `use` or a label; commas separate.

    Raises UsageError for a name that the plan does not have, and when nothing is left.
    """
    wanted, unwanted = _names(plan, "--only", only), _names(plan, "--skip", skip)

    def stays(collector: Collector) -> bool:
        own = {collector.use, collector.label()}
        return (not wanted or bool(own & wanted)) and not own & unwanted

    items: list[Collector | Together] = []
    splits: list[Split] = []
    for group, where in plan.as_written():
        kept = tuple(collector for collector in group if stays(collector))
        parts = sharing.passes(kept)
        splits += [Split(len(items), kept, where)] if len(parts) > 1 else []
        items += [part[0] if len(part) == 1 else Together(together=part) for part in parts]
    if not items:
        raise UsageError("no collector is left to run", "--only and --skip leave none", f"the plan has {_listed(plan)}")
    return plan.with_items(items, splits)


def check_needs(plan: Plan) -> None:
    """Raises UsageError when the chosen part lacks what another of its collectors takes its kernels from."""
    for _, collector, need in plan.unmet():
        raise UsageError(
            f"{collector.use} takes its kernels from {need}, and --only or --skip leaves that out",
            "",
            f"choose {need} as well, or add to a report that has it: --only {collector.use} --into RUN",
        )


def _names(plan: Plan, option: str, given: Sequence[str]) -> set[str]:
    names = {name.strip() for text in given for name in text.split(",") if name.strip()}
    if given and not names:
        raise UsageError(f"{option} names no collector", "", f"the plan has {_listed(plan)}")
    known = {word for collector in plan.each_collector() for word in (collector.use, collector.label())}
    for name in sorted(names - known):
        raise UsageError(f"{option} {name}: the plan has no such collector", "", suggestion(name, sorted(known)))
    return names


def _listed(plan: Plan) -> str:
    return ", ".join(dict.fromkeys(collector.use for collector in plan.each_collector()))


def dump(plan: Plan, change: Callable[[Any], Any] = lambda tree: tree) -> str:
    """The plan as YAML with every default spelled out, valid to load again. What it extended is in it already.
    `change` gets it as plain data."""
    return source.dump(change(plan.model_dump(mode="json", by_alias=True, exclude={"extends"})))


def json_schema(plugins: bool = True) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a plan; `plugins`: with what other installed packages offer."""
    from orchestrator.planfile import schema

    return schema.build(Plan, plugins)
