"""A program's neutral copy: it does the same, and no name, comment or docstring of its own says what that is.

Own names are renamed by one map for the whole file, so that parameters, keywords, attributes and their uses stay
together. A name stays where renaming it might change what the program does: it is imported or a builtin, a library may
look for it (a method that nobody here calls, or that a base class has), or it is an attribute of something of unknown
kind. Where not even that is certain, Unsafe is raised."""

from __future__ import annotations

import ast
import builtins
import importlib
import random
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SWITCH = "REPAIRED"
"""The constant that turns a planted program into its repaired twin."""
FEWEST_TURNS = 50
"""Shorter loops than this are no repetition of steps: their length may be a size of the data."""
SPREAD = 0.2

_REFLECTING = {"exec", "eval", "compile", "globals", "locals", "vars", "__import__"}
_TEXTS = {"__dict__", "__doc__", "__name__", "__qualname__", "__annotations__"}
_BY_STRING = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"}
_VARY = re.compile(r"^#\s*vary:\s*(\w+)\s+([\d.]+)\.\.([\d.]+)\s*$", re.MULTILINE)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Unsafe(ValueError):
    """A program that can't be renamed for certain: one sentence says why, with the line."""


@dataclass(frozen=True)
class Copy:
    source: str
    names: dict[str, str]
    """Own name -> its name in the copy, of those that were renamed."""


def neutral(source: str, seed: int, *, repaired: bool = False, vary: bool = True) -> Copy:
    """The copy for a seed: other names for each, and with `vary` other sizes. Raises Unsafe."""
    tree = ast.parse(source)
    chance = random.Random(seed)
    if repaired:
        _repair(tree)
    _refuse(tree)
    if vary:
        _vary(tree, {name: (float(low), float(high)) for name, low, high in _VARY.findall(source)}, chance)
    names = _names(tree, source, chance)
    renamed = ast.fix_missing_locations(_Renamer(names, Own.of(tree)).visit(_undocumented(tree)))
    return Copy(ast.unparse(renamed) + "\n", names)


def _repair(tree: ast.Module) -> None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(x, ast.Name) and x.id == SWITCH for x in node.targets):
            node.value = ast.Constant(True)
            return
    raise Unsafe(f"the program has no `{SWITCH} = False` of its module: there is no repaired twin")


# ---------------------------------------------------------------- what the program's own is


@dataclass
class Own:
    """What a program binds itself, and the kinds of things that names stand for."""

    imported: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    """Names of variables, parameters, functions and classes."""
    attributes: set[str] = field(default_factory=set)
    """Methods, variables of classes, and what is set on anything here."""
    parameters: dict[str, set[str]] = field(default_factory=dict)
    """Of each own callable, by its name; of a class: those of its __init__ or its fields."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    library: set[str] = field(default_factory=set)
    """Variables and attributes that only ever hold what a library has made."""
    selves: set[str] = field(default_factory=set)
    """Names that only ever stand for objects of own classes."""

    @classmethod
    def of(cls, tree: ast.Module) -> Own:
        own = cls()
        for node in ast.walk(tree):
            own._binds(node)
        for node in own.classes.values():
            own._class(node)
        own._kinds(tree)
        return own

    def _binds(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imported |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            self.bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.bound.add(node.name)
            self.parameters.setdefault(node.name, set()).update(_parameters(node))
        elif isinstance(node, ast.ClassDef):
            self.bound.add(node.name)
            self.classes[node.name] = node
        elif isinstance(node, ast.arg):
            self.bound.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            self.attributes.add(node.attr)
        for name in _bound_by_text(node):
            self.bound.add(name)

    def _class(self, node: ast.ClassDef) -> None:
        fields = {x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)}
        plain = {t.id for x in node.body if isinstance(x, ast.Assign) for t in x.targets if isinstance(t, ast.Name)}
        methods = {x.name: x for x in node.body if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))}
        self.attributes |= fields | plain | set(methods)
        start = methods.get("__init__")
        self.parameters[node.name] = _parameters(start) if start else fields

    def _kinds(self, tree: ast.Module) -> None:
        """What each name and attribute is given, wherever that is: one kind, or unknown."""
        given: dict[str, set[str]] = {}
        for target, kind in self._assignments(tree):
            given.setdefault(_word(target) or "", set()).add(kind)
        firsts = {id(arg): arg.arg for node in self.classes.values() for arg in _first_parameters(node)}
        for node in ast.walk(tree):
            for arg in _all_arguments(node) if isinstance(node, _FUNCTIONS) else ():
                given.setdefault(arg.arg, set()).add("own" if id(arg) in firsts else "unknown")
        self.selves = {name for name, kinds in given.items() if kinds == {"own"}}
        self.library = {name for name, kinds in given.items() if kinds == {"library"}}

    def _assignments(self, tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
        """Targets and the kind of what they are given: unknown for the items of something, and what a `with` yields."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    whole = not isinstance(target, (ast.Tuple, ast.List))
                    yield from ((part, self.kind(node.value) if whole else "unknown") for part in _targets(target))
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
                yield node.target, self.kind(node.value) if node.value else "unknown"
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                kind = self.kind(node.context_expr)
                yield from ((part, "unknown" if kind == "own" else kind) for part in _targets(node.optional_vars))
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                yield from ((part, "unknown") for part in _targets(node.target))

    def kind(self, value: ast.expr) -> str:
        """`own`: an object of an own class; `library`: a literal, a module, or an object of an imported or builtin
        class; or `unknown`: what functions return, and what is in a container or an attribute, may be of any kind."""
        if isinstance(value, (ast.Constant, ast.List, ast.Dict, ast.Set, ast.Tuple, ast.JoinedStr)):
            return "library"
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Name) and value.func.id in self.classes:
                return "own"
            return "library" if self._foreign(value.func) and _is_a_class(value.func) else "unknown"
        if _word(value) in self.selves:
            return "own"
        return "library" if _word(value) in self.library or self._foreign(value) else "unknown"

    def _foreign(self, node: ast.expr) -> bool:
        """Reached from an import or a builtin by attributes alone."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.bound:
            return False
        return node.id in self.imported or hasattr(builtins, node.id)


def _is_a_class(func: ast.expr) -> bool:
    """By how libraries write the names of classes; and the builtins that make an object of their own."""
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name[:1].isupper() or name in ("open", "range", "list", "dict", "set", "str", "bytes", "bytearray", "sorted")


def _targets(target: ast.expr) -> Iterator[ast.expr]:
    inside = (x for x in ast.walk(target) if isinstance(x, (ast.Name, ast.Attribute)))
    yield from (x for x in inside if isinstance(x.ctx, ast.Store))


def _word(node: ast.expr) -> str | None:
    """A variable by its name, an attribute of a variable by `.name`."""
    if isinstance(node, ast.Name):
        return node.id
    return "." + node.attr if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else None


def _all_arguments(node: Any) -> list[ast.arg]:
    spec = node.args
    return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(x for x in (spec.vararg, spec.kwarg) if x)]


def _parameters(node: Any) -> set[str]:
    return {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)}


def _first_parameters(node: ast.ClassDef) -> Iterator[ast.arg]:
    for method in node.body:
        static = isinstance(method, ast.FunctionDef) and any(_word(x) == "staticmethod" for x in method.decorator_list)
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.args.args and not static:
            yield method.args.args[0]


def _bound_by_text(node: ast.AST) -> Iterator[str]:
    """Names that a node binds as plain text: `except E as name`, `case name`, `case {**name}`."""
    for attribute in ("name", "rest"):
        name = getattr(node, attribute, None)
        if isinstance(name, str) and type(node).__name__ in ("ExceptHandler", "MatchAs", "MatchStar", "MatchMapping"):
            yield name


# ---------------------------------------------------------------- what stays, and what is refused


def _refuse(tree: ast.Module) -> None:
    own = Own.of(tree)
    for node in ast.walk(tree):
        why = _reason(node, own)
        if why:
            raise Unsafe(f"line {getattr(node, 'lineno', '?')}: {why}")


def _reason(node: ast.AST, own: Own) -> str:
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        return "`import *`: nobody knows which names are the program's own"
    if isinstance(node, ast.Name) and node.id in _REFLECTING and node.id not in own.bound:
        return f"`{node.id}` sees names as text"
    if (isinstance(node, ast.Name) and node.id == "__doc__") or getattr(node, "attr", None) in _TEXTS:
        return "a name or docstring is used as text"
    if isinstance(node, ast.Call):
        return _reason_of_call(node, own)
    return ""


def _reason_of_call(node: ast.Call, own: Own) -> str:
    called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if called in _BY_STRING:
        texts = node.args[:1] if called in ("attrgetter", "methodcaller") else node.args[1:2]
        for text in texts:
            if not isinstance(text, ast.Constant):
                return f"`{called}` by a name that is only known as the program runs"
            if text.value in own.bound | own.attributes:
                return f"`{called}` by the text {text.value!r}, an own name"
    if called in own.parameters and any(keyword.arg is None for keyword in node.keywords):
        return f"`**` in a call of the own `{called}`: its keywords are text"
    return ""


def _names(tree: ast.Module, source: str, chance: random.Random) -> dict[str, str]:
    own = Own.of(tree)
    every = own.bound | own.attributes
    wanted = sorted(name for name in every - _staying(tree, source, own) if not re.fullmatch(r"_|__\w+__", name))
    taken = every | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | own.imported
    numbers = [number for number in range(1, 3 * len(wanted) + 30) if f"n{number}" not in taken]
    return dict(zip(wanted, (f"n{number}" for number in chance.sample(numbers, len(wanted))), strict=True))


def _staying(tree: ast.Module, source: str, own: Own) -> set[str]:
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    stay = own.imported | {name for name in own.bound if hasattr(builtins, name)}
    stay |= set().union(*(_called_by_libraries(node, own, used, tree) for node in own.classes.values()), set())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in own.attributes and own.kind(node.value) == "unknown":
            stay.add(node.attr)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own.kind(node.value) != "own":
            stay.add(node.attr)  # set on a thing of a library
        if isinstance(node, ast.Call):
            stay |= _keywords_of_unknown(node, own)
    return stay | _as_text(tree) | _read_before_bound(source)


def _called_by_libraries(node: ast.ClassDef, own: Own, used: set[str], tree: ast.Module) -> set[str]:
    """What a base class of a library knows, and methods that nobody here calls."""
    bases = [base for base in node.bases if not (isinstance(base, ast.Name) and base.id in own.classes)]
    if not bases and not node.decorator_list:
        return set()
    methods = {x.name for x in node.body if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))}
    known: set[str] = set()
    for base in bases:
        known |= set(dir(_object(base, tree)))
    return (methods - used) | (known & own.attributes)


def _object(base: ast.expr, tree: ast.Module) -> object:
    """The class that an expression of imported names stands for; Unsafe where it can't be had."""
    first, *more = ast.unparse(base).split("[")[0].split(".")
    try:
        value: Any = getattr(builtins, first, None) or _imported(first, tree)
        for name in more:
            value = getattr(value, name)
    except (ImportError, AttributeError, LookupError) as error:
        raise Unsafe(f"line {base.lineno}: the base class {ast.unparse(base)} can't be looked at: {error}") from error
    return value


def _imported(name: str, tree: ast.Module) -> object:
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            if (alias.asname or alias.name.partition(".")[0]) != name:
                continue
            if isinstance(node, ast.ImportFrom):
                return getattr(importlib.import_module(node.module or ""), alias.name)
            module = importlib.import_module(alias.name)
            return module if alias.asname else importlib.import_module(name)
    raise LookupError(f"{name} is not imported")


def _keywords_of_unknown(node: ast.Call, own: Own) -> set[str]:
    """Keywords that may reach an own function by way of something else: `partial(f, limit=3)`, `callback(limit=3)`."""
    if _callee(node.func, own):
        return set()
    known = {x for names in own.parameters.values() for x in names}
    handed_on = any(_callee(x, own) for x in node.args)
    if own.kind(node) == "library" and not handed_on:
        return set()
    return {keyword.arg for keyword in node.keywords if keyword.arg in known and keyword.arg is not None}


def _callee(func: ast.expr, own: Own) -> str | None:
    """The own callable that is called, if that is sure."""
    if isinstance(func, ast.Name) and func.id in own.parameters:
        return func.id
    if isinstance(func, ast.Attribute) and func.attr in own.parameters and own.kind(func.value) == "own":
        return func.attr
    return None


def _as_text(tree: ast.Module) -> set[str]:
    """Names that stand as text where Python takes them for names: `kwargs={"limit": 3}`, `__slots__`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        spots: list[ast.AST] = []
        if isinstance(node, ast.keyword) and node.arg == "kwargs":
            spots.append(node.value)
        if isinstance(node, ast.Assign) and any(_word(x) in ("__slots__", "__match_args__") for x in node.targets):
            spots.append(node.value)
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation:
            spots.append(node.annotation)
        if isinstance(node, ast.MatchClass):
            found |= {*node.kwd_attrs}
        inside = (x.value for spot in spots for x in ast.walk(spot) if isinstance(x, ast.Constant))
        found |= {text for text in inside if isinstance(text, str)}
    return found


def _read_before_bound(source: str) -> set[str]:
    """Names that a scope takes from nowhere in this file although another scope binds them: builtins, or faults."""

    def unbound(table: symtable.SymbolTable) -> Iterator[str]:
        top = {x.get_name() for x in whole.get_symbols() if x.is_assigned() or x.is_imported() or x.is_namespace()}
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.is_referenced() and symbol.get_name() not in top:
                yield symbol.get_name()
        for child in table.get_children():
            yield from unbound(child)

    whole = symtable.symtable(source, "program", "exec")
    return {name for name in unbound(whole) if hasattr(builtins, name)}


# ---------------------------------------------------------------- the copy


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str], own: Own) -> None:
        self.names, self.own = names, own

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for attribute in ("id", "arg", "name", "rest"):
            if not isinstance(node, (ast.alias, ast.keyword)) and isinstance(getattr(node, attribute, None), str):
                setattr(node, attribute, self._new(getattr(node, attribute)))
        return super().generic_visit(node)

    def _new(self, name: str) -> str:
        return self.names.get(name, name)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr in self.own.attributes and self.own.kind(node.value) != "library":
            node.attr = self._new(node.attr)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        callee = _callee(node.func, self.own)
        for keyword in node.keywords if callee else ():
            if keyword.arg in self.own.parameters[callee or ""]:
                keyword.arg = self._new(keyword.arg)
        return self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> ast.AST:
        node.names = [self._new(name) for name in node.names]
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        node.names = [self._new(name) for name in node.names]
        return node


def _undocumented(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


# ---------------------------------------------------------------- other sizes


def _vary(tree: ast.Module, allowed: dict[str, tuple[float, float]], chance: random.Random) -> None:
    """Constants of the module that a `# vary: NAME 0.7..1.3` line names, and how often steps are repeated."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and _word(node.targets[0]) in allowed:
            low, high = allowed.pop(_word(node.targets[0]) or "")
            node.value.value = _times(node.value.value, chance.uniform(low, high))
    if allowed:
        raise Unsafe(f"`# vary: {next(iter(allowed))}`: the module gives no number of that name")
    for node in ast.walk(tree):
        count = _turns(node)
        if count is not None:
            count.value = _times(count.value, chance.uniform(1 - SPREAD, 1 + SPREAD))


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unsafe(f"{value!r} can't be varied: it is not a number")
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _turns(node: ast.AST) -> ast.Constant | None:
    """The number of a loop's turns, where that is no size of the data: it trains, or neither counts nor keeps."""
    if not (isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and _word(node.iter.func) == "range"):
        return None
    count = node.iter.args[0]
    if len(node.iter.args) != 1 or not isinstance(count, ast.Constant) or type(count.value) is not int:
        return None
    inside = {x.attr for part in node.body for x in ast.walk(part) if isinstance(x, ast.Attribute)}
    repeats = "backward" in inside or (_word(node.target) == "_" and not inside & {"append", "add", "write", "put"})
    return count if repeats and count.value >= FEWEST_TURNS else None
