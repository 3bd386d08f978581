"""YAML text as a tree whose values remember their file and line; what YAML readers read differently is refused.

A plain scalar is null (`~`, `null`, nothing), true, false, a whole number, a decimal number, or text: where YAML 1.1
and 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) agree. Merge keys, tags and a second document are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from orchestrator.errors import Problem
from orchestrator.planfile.tree import LIMIT_DEPTH, Node, Path, Place, Scalar, path_text
from orchestrator.units import digits

LIMIT_NODES = 10_000
"""Values in one file, aliases written out. The largest real plans have some hundreds."""


class Written(float):
    """A decimal number that prints as it was written: 0.10 stays 0.10 on a command line."""

    text: str

    def __new__(cls, text: str) -> Written:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text


class Ambiguous(ValueError):
    """A plain scalar that YAML readers read differently. `hint` says how to write it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


# ---------------------------------------------------------------- scalars

_CONSTANTS: Mapping[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_SWITCHES = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,29}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,399})\.[0-9]{1,400}")
_LIKE_A_NUMBER = re.compile(
    r"[-+]?(\.?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|0[xob][0-9a-fA-F_]+|\.(inf|nan))", re.I
)
_SIXTIES = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")


def scalar(text: str) -> Scalar:
    """The value of a plain (unquoted) scalar. Raises Ambiguous."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return Written(text)
    _refuse_ambiguous(text)
    return text


def _refuse_ambiguous(text: str) -> None:
    quoted = f'"{text}"'
    if text.lower() in _SWITCHES:
        raise Ambiguous(
            f"{text} is text to some and a truth value to others", f"write {_SWITCHES[text.lower()]} or {quoted}"
        )
    if _SIXTIES.fullmatch(text):
        raise Ambiguous(
            f"{text} is text to some and a number in base 60 to others", f"write {quoted}; a duration like 12m30s"
        )
    if _DATE.fullmatch(text):
        raise Ambiguous(f"{text} is text to some and a date to others", f"write {quoted}")
    if _LIKE_A_NUMBER.fullmatch(text):
        number = _decimal(text)
        also = f"write {number} for the number, {quoted} for the text" if number else f"write {quoted} for the text"
        raise Ambiguous(f"{text} is not read as the same number, or not as a number, by everyone", also)


def _decimal(text: str) -> str | None:
    """The number that was probably meant, as this reader takes it; None where that can't be said."""
    number = text.replace("_", "").lstrip("+").lower()
    if len(number) > 40 or re.match(r"-?0[0-9]|-?\.[in]|.*e[-+]?[0-9]{4}", number):
        return None
    try:
        shown = str(int(number, 0)) if number[:2] in ("0x", "0o", "0b") else digits(number)
    except (ArithmeticError, ValueError):
        return None
    return shown if _WHOLE.fullmatch(shown) or _DECIMAL.fullmatch(shown) else None


# ---------------------------------------------------------------- reading


def read(source: bytes | str, file: str) -> tuple[Node | None, list[Problem]]:
    """The tree of the one document in `source`, and everything that is wrong with its YAML.

    The tree is None where the text as a whole can't be read. A value with a problem of its own stays in it as its text.
    """
    text = ""
    try:
        text = _decoded(source)
        reader = _Reader(text, file)
        return reader.document(), reader.problems
    except _Fatal as fatal:
        return None, [Problem(file, fatal.line, "", fatal.message, fatal.hint)]
    except yaml.YAMLError as error:
        return None, [_syntax_problem(error, file, text)]


class _Fatal(Exception):
    """The text can't be turned into a tree at all."""

    def __init__(self, message: str, line: int | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.line, self.hint = message, line, hint


def _decoded(source: bytes | str) -> str:
    data = source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source
    if b"\0" in data:
        raise _Fatal("is not text but a binary file: it holds NUL bytes", data.count(b"\n", 0, data.index(b"\0")) + 1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Fatal(f"is not UTF-8 text: byte 0x{data[error.start]:02x}", line, "save it as UTF-8") from None


_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class _Reader:
    """Builds the tree from the parser's events, and collects what is wrong on the way.

    From events rather than by `yaml.compose`, which recurses in C without a limit and can crash on deep nesting.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, tuple[Node, int] | None] = {}
        """What each anchor names, and its size; None while it is being read."""
        self._count = 0

    def document(self) -> Node:
        """The one document of the text; a null where there is none."""
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return Node(None, Place(self.file, None))
        root = self._node(next(self._events), ())
        next(self._events)  # the document's end
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            line = after.start_mark.line + 1
            raise _Fatal("holds several documents (---); a plan is one", line, "keep one, or make two files")
        return root

    def _node(self, event: Any, path: Path, line: int | None = None) -> Node:
        line = line or event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._named(str(event.anchor), line)
        if len(path) > LIMIT_DEPTH:
            raise _Fatal(f"is nested more than {LIMIT_DEPTH} deep", line)
        before = self._count
        self._add(1, line)
        if event.tag not in (None, "!"):
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._problem(line, path, f"the tag {tag} is not used in plans", "leave it out; text goes in quotes")
        if event.anchor:
            self._anchors[event.anchor] = None
        node = Node(self._value(event, path, line), Place(self.file, line))
        if event.anchor:
            self._anchors[event.anchor] = node, self._count - before
        return node

    def _named(self, anchor: str, line: int) -> Node:
        if anchor not in self._anchors:
            hint = "put text that starts with * in quotes"
            raise _Fatal(f"the alias *{anchor} has no anchor &{anchor} before it", line, hint)
        named = self._anchors[anchor]
        if named is None:
            raise _Fatal("an alias stands inside the very thing that it names", line, "write it out")
        self._add(named[1], line)
        return named[0]

    def _add(self, count: int, line: int) -> None:
        self._count += count
        if self._count > LIMIT_NODES:
            raise _Fatal(f"holds more than {LIMIT_NODES} values, aliases written out", line, "a plan is far smaller")

    def _value(self, event: Any, path: Path, line: int) -> Scalar | list[Node] | dict[str, Node]:
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if not event.implicit[0]:
            return str(event.value)
        try:
            return scalar(event.value)
        except Ambiguous as error:
            self._problem(line, path, str(error), error.hint)
            return str(event.value)

    def _sequence(self, path: Path) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            line = key.start_mark.line + 1
            name = key.value if isinstance(key, yaml.ScalarEvent) else None
            if name is None:
                self._node(key, (*path, "?"))
                self._problem(line, path, "a key must be a word", "a value that starts with { or [ needs quotes")
            at = path if name is None else (*path, name)
            value = self._node(next(self._events), at, line)
            if name == "<<" and key.implicit[0]:
                self._problem(line, path, "merge keys (<<) are not used in plans", "write the keys out, or use extends")
            elif name in found:
                first = found[name].place.line
                self._problem(line, at, f"the key stands here twice, first on line {first}", "keep one")
            elif name is not None:
                found[name] = value
        return found

    def _problem(self, line: int, path: Path, message: str, hint: str) -> None:
        self.problems.append(Problem(self.file, line, path_text(path), message, hint))


_PLAINER = (
    (
        "mapping values are not allowed",
        "a second `: ` in one value, or lines not indented alike",
        "put such text in quotes",
    ),
    ("expected ',' or ']'", "a [ is not closed, or a comma is missing", ""),
    ("expected ',' or '}'", "a { is not closed, or a comma is missing", ""),
    ("unexpected end of stream", "a quote is not closed", ""),
    ("could not find expected ':'", "a `:` is missing after a key", ""),
    ("did not find expected key", "a line that is not indented as those above, or text after a closing quote", ""),
    ("did not find expected '-'", "a line between list items does not start with `-`", ""),
    (
        "unknown escape character",
        "a backslash inside double quotes starts an escape",
        "use single quotes, as for regexes",
    ),
    ("maximum nesting depth", f"is nested more than {LIMIT_DEPTH} deep", ""),
)
"""What libyaml says, what that means to people, and what to do."""


def _syntax_problem(error: yaml.YAMLError, file: str, text: str) -> Problem:
    """What libyaml says, in words about the text. Marks count lines from 0."""
    if isinstance(error, yaml.reader.ReaderError):
        line = text.encode()[: error.position].count(b"\n") + 1
        return Problem(file, line, "", f"holds a character that is no text: {error.reason}")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(file, None, "", f"can't be read as YAML: {error}")
    said = " ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark
    line = mark.line + 1 if mark else 1
    if mark and "cannot start any token" in said:
        return Problem(file, line, "", *_bad_start(text.split("\n")[mark.line][mark.column :]))
    for words, plainer, hint in _PLAINER:
        if words in said:
            start = error.context_mark if "not closed" in plainer else None
            return Problem(file, start.line + 1 if start else line, "", plainer, hint)
    return Problem(file, line, "", f"can't be read as YAML: {said}")


def _bad_start(rest: str) -> tuple[str, str]:
    if rest.startswith("\t"):
        return "a tab stands where the indentation should be", "indent with spaces"
    return f"no value can start with {rest[:1]}", f'put it in quotes: "{rest.strip()[:40]}"'


# ---------------------------------------------------------------- writing


def dump(value: Any) -> str:
    """Dicts, lists and scalars as YAML that `read` takes back as the same; lists of scalars on one line."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))


def flow(value: Any) -> str:
    """The same on one line: {use: nsys, trace: [cuda, nvtx]}."""
    text = yaml.dump(value, Dumper=_FlowDumper, sort_keys=False, allow_unicode=True, width=float("inf"))
    return str(text).removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """Quotes what `scalar` would not read back as text, and writes numbers without exponents."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    try:
        plain_text = isinstance(scalar(text), str) and text.isprintable()
    except Ambiguous:
        plain_text = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain_text else '"')


def _write_decimal(dumper: yaml.SafeDumper, number: float) -> yaml.Node:
    text = digits(number)
    return dumper.represent_scalar("tag:yaml.org,2002:float", text if "." in text else text + ".0")


def _write_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flow = not any(isinstance(item, (dict, list)) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


def _write_mapping(dumper: yaml.SafeDumper, pairs: dict[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", pairs, flow_style=not pairs)


_Dumper.add_representer(str, _write_text)
_Dumper.add_representer(float, _write_decimal)
_Dumper.add_representer(list, _write_list)
_Dumper.add_representer(dict, _write_mapping)


class _FlowDumper(_Dumper):
    """Everything on one line."""


def _list_in_flow(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


def _mapping_in_flow(dumper: yaml.SafeDumper, pairs: dict[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", pairs, flow_style=True)


_FlowDumper.add_representer(list, _list_in_flow)
_FlowDumper.add_representer(dict, _mapping_in_flow)
