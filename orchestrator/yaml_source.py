"""YAML text as a tree whose values remember their file and line; what YAML readers read differently is refused.

A plain scalar is null (`~`, `null`, nothing), true, false, a whole number, a decimal number, or text: where YAML 1.1
and 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) agree. Merge keys, tags and a second document are not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.errors import Problem
from orchestrator.tree import LIMIT_DEPTH, Node, Path, Place, Scalar, path_text
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
    if re.match(r"-?0[0-9]|-?\.[in]", number):
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
        root = yaml.compose(text, Loader=_Loader)
        builder = _Builder(file)
        node = Node(None, Place(file, None)) if root is None else builder.node(root, ())
    except _Fatal as fatal:
        return None, [Problem(file, fatal.line, "", fatal.message, fatal.hint)]
    except yaml.YAMLError as error:
        return None, [_syntax_problem(error, file, text)]
    except RecursionError:
        return None, [Problem(file, None, "", f"is nested more than {LIMIT_DEPTH} deep")]
    return node, builder.problems


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


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Composes nodes whose tag says only whether a scalar was written plain: an explicit tag can then be told apart."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        return "plain" if kind is yaml.ScalarNode and implicit[0] else "untagged"


class _Builder:
    """Turns composed nodes into ours and collects what is wrong on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._count = 0

    def node(self, raw: yaml.Node, path: Path, line: int | None = None) -> Node:
        line = line or raw.start_mark.line + 1
        self._limit(raw, path, line)
        if raw.tag not in ("plain", "untagged"):
            tag = raw.tag.replace("tag:yaml.org,2002:", "!!")
            self._problem(line, path, f"the tag {tag} is not used in plans", "leave it out; text goes in quotes")
        self._open.add(id(raw))
        value = self._value(raw, path, line)
        self._open.discard(id(raw))
        return Node(value, Place(self.file, line))

    def _limit(self, raw: yaml.Node, path: Path, line: int) -> None:
        self._count += 1
        if id(raw) in self._open:
            raise _Fatal("an alias stands inside the very thing that it names", line, "write it out")
        if self._count > LIMIT_NODES:
            raise _Fatal(f"holds more than {LIMIT_NODES} values, aliases written out", line, "a plan is far smaller")
        if len(path) > LIMIT_DEPTH:
            raise _Fatal(f"is nested more than {LIMIT_DEPTH} deep", line)

    def _value(self, raw: yaml.Node, path: Path, line: int) -> Scalar | list[Node] | dict[str, Node]:
        if isinstance(raw, yaml.SequenceNode):
            return [self.node(item, (*path, index)) for index, item in enumerate(raw.value)]
        if isinstance(raw, yaml.MappingNode):
            return self._mapping(raw, path)
        if raw.tag != "plain":
            return str(raw.value)
        try:
            return scalar(raw.value)
        except Ambiguous as error:
            self._problem(line, path, str(error), error.hint)
            return str(raw.value)

    def _mapping(self, raw: yaml.MappingNode, path: Path) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in raw.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._problem(line, path, "a key must be a word", "a value that starts with { or [ needs quotes")
            elif key.value == "<<" and key.tag == "plain":
                self._problem(line, path, "merge keys (<<) are not used in plans", "write the keys out, or use extends")
            elif key.value in found:
                first = found[key.value].place.line
                self._problem(line, (*path, key.value), f"the key stands here twice, first on line {first}", "keep one")
            else:
                found[key.value] = self.node(value, (*path, key.value), line)
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
    ("found undefined alias", "an alias (*name) without its anchor (&name)", "put text that starts with * in quotes"),
    (
        "unknown escape character",
        "a backslash inside double quotes starts an escape",
        "use single quotes, as for regexes",
    ),
    ("maximum nesting depth", f"is nested more than {LIMIT_DEPTH} deep", ""),
    ("expected a single document", "holds several documents (---); a plan is one", "keep one, or make two files"),
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
