"""The YAML reader: what every reader agrees on is read, the rest is refused with its line and a way to write it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import Problem
from orchestrator.planfile import source
from orchestrator.planfile.tree import Node, Place, places, plain


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both parsers that PyYAML may come with."""
    if request.param == "python":
        monkeypatch.setattr(source, "_LOADER", yaml.BaseLoader)
    return str(request.param)


def value_of(text: str) -> Any:
    node, problems = source.read(text, "p")
    assert problems == []
    assert node is not None
    return plain(node)


def problem_of(text: str | bytes) -> Problem:
    _, problems = source.read(text, "p")
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None), ("null", None), ("", None), ("true", True), ("False", False), ("0", 0), ("-12", -12), ("7", 7),
        ("0.10", 0.1), ("-3.5", -3.5), ("30m", "30m"), ("10x", "10x"), ("100Hz", "100Hz"), ("30%", "30%"),
        ("1.2.3", "1.2.3"), ("a-b", "a-b"), ("y", "y"), ("offline", "offline"), ("2024", 2024), ("80:8080", "80:8080"),
        ("'0755'", "0755"), ('"off"', "off"), ("'12:30'", "12:30"), ("nan", "nan"), ("1e", "1e"), ("-", [None]),
        ("|\n  off\n", "off\n"), ("[1, two, 3.0]", [1, "two", 3.0]), ("{a: {b: ~}}", {"a": {"b": None}}),
        ("{on: 1, 0755: 2, ~: 3}", {"on": 1, "0755": 2, "~": 3}), ("&x [1]", [1]),
        ("[&x [1], *x, *x]", [[1], [1], [1]]), ("\ufeff5", 5), ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_what_everyone_reads_alike_is_read(text: str, value: object) -> None:
    read = value_of(text)
    assert read == value
    assert type(read) is type(value) or (isinstance(value, float) and isinstance(read, float))


def test_a_decimal_number_prints_as_it_was_written() -> None:
    number = value_of("0.10")
    assert (str(number), number + 0) == ("0.10", 0.1)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("yes", "yes is text to some and a truth value to others", 'write true or "yes"'),
        ("off", "off is text to some and a truth value to others", 'write false or "off"'),
        ("On", "On is text to some and a truth value to others", 'write true or "On"'),
        ("NO", "NO is text to some and a truth value to others", 'write false or "NO"'),
        ("12:30", "12:30 is text to some and a number in base 60 to others", 'write "12:30"; a duration like 12m30s'),
        (
            "1:30:00",
            "1:30:00 is text to some and a number in base 60 to others",
            'write "1:30:00"; a duration like 12m30s',
        ),
        ("2024-11-29", "2024-11-29 is text to some and a date to others", 'write "2024-11-29"'),
        (
            "2024-11-29 10:00:00",
            "2024-11-29 10:00:00 is text to some and a date to others",
            'write "2024-11-29 10:00:00"',
        ),
    ],
)
def test_what_some_read_otherwise_is_refused(text: str, message: str, hint: str) -> None:
    assert problem_of(f"a:\n  b: {text}") == Problem("p", 2, "a.b", message, hint)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.0e5", "100000"), ("1e5", "100000"), ("1e-3", "0.001"), ("1e-15", "0.000000000000001"), ("1_000", "1000"),
        (".5", "0.5"), ("5.", "5"), ("+5", "5"), ("+1.50", "1.5"), ("0x1F", "31"), ("0o17", "15"), ("0b11", "3"),
        ("0755", None), ("007.5", None), (".inf", None), ("-.INF", None), (".nan", None), ("1e999", None),
        ("9" * 50, None), ("0b2", None), ("1e999999999", None),
    ],
)  # fmt: skip
def test_a_number_spelled_in_a_way_of_its_own_is_refused(text: str, number: str | None) -> None:
    problem = problem_of(f"a: {text}")
    assert problem.message == f"{text} is not read as the same number, or not as a number, by everyone"
    assert problem.hint == (
        f'write {number} for the number, "{text}" for the text' if number else f'write "{text}" for the text'
    )
    assert (problem.line, problem.path) == (1, "a")


@settings(deadline=None, max_examples=300)
@given(st.text("0123456789.+-_:eExob yYnNoOfFtTrRuUaAlLsS~", max_size=12).filter(lambda t: t.strip() == t))
def test_a_plain_scalar_is_never_read_otherwise_than_by_pyyaml(text: str) -> None:
    """PyYAML reads YAML 1.1: where it sees a value that is not text, we see the same value or refuse."""
    try:
        theirs = yaml.safe_load(text)
        ours = source.scalar(text)
    except (yaml.YAMLError, ValueError):
        return
    if not isinstance(theirs, (str, dict, list)):
        assert ours == theirs


def test_all_problems_are_told_at_once() -> None:
    text = "a: yes\nb: {c: 1_0, c: 2}\nd: !!python/name:os.system x\n<<: {a: 1}\n? [1]\n: 2\n"
    _, problems = source.read(text, "p")
    assert [(p.line, p.path, p.message) for p in problems] == [
        (1, "a", "yes is text to some and a truth value to others"),
        (2, "b.c", "1_0 is not read as the same number, or not as a number, by everyone"),
        (2, "b.c", "the key stands here twice, first on line 2"),
        (3, "d", "the tag !!python/name:os.system is not used in plans"),
        (4, "", "merge keys (<<) are not used in plans"),
        (5, "", "a key must be a word"),
    ]


@pytest.mark.parametrize("tag", ["!!str 5", "!mine {a: 1}", "!!python/object/apply:os.system [ls]", "!!binary aGk="])
def test_tags_are_refused_and_run_nothing(tag: str) -> None:
    assert "is not used in plans" in problem_of(f"a: {tag}").message


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"a: 1\nb: \x00\x01", 2, "is not text but a binary file: it holds NUL bytes"),
        (b"\x7fELF\x02\x01\x01\x00", 1, "is not text but a binary file: it holds NUL bytes"),
        (b"a: 1\nb: caf\xe9", 2, "is not UTF-8 text: byte 0xe9"),
        ("a: 1\nb: \x07", 2, "holds a character that is no text"),
        ("a: 1\n---\nb: 2", 2, "holds several documents (---); a plan is one"),
        ("a: *x", 1, "the alias *x has no anchor &x before it"),
    ],
)
def test_text_that_is_no_plan_at_all(text: bytes | str, line: int, message: str) -> None:
    problem = problem_of(text)
    assert (problem.line, problem.path) == (line, "")
    assert problem.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("a:\n\tb: 1", 2, "a tab stands where the indentation should be", "indent with spaces"),
        ("a: 1\nb: @x y", 2, "no value can start with @", 'put it in quotes: "@x y"'),
        ("a: `x`", 1, "no value can start with `", 'put it in quotes: "`x`"'),
        ("a: b: c", 1, "a second `: ` in one value, or lines not indented alike", "put such text in quotes"),
        ("x: 1\na: [1, 2\nb: 3", 2, "a [ is not closed, or a comma is missing", ""),
        ("a: {b: 1\nc: 2", 1, "a { is not closed, or a comma is missing", ""),
        ("x: 1\na: 'x\nb: 2", 2, "a quote is not closed", ""),
        ("a: 1\nb\nc: 2", 3, "a `:` is missing after a key", ""),
        ("a:\n  b: 1\n c: 2", 3, "a line that is not indented as those above, or text after a closing quote", ""),
        ("- a\nb: 1", 2, "a line between list items does not start with `-`", ""),
        (r'a: "loss=\d"', 1, "a backslash inside double quotes starts an escape", "use single quotes, as for regexes"),
    ],
)
def test_broken_yaml_is_told_in_plain_words(text: str, line: int, message: str, hint: str, loader: str) -> None:
    if loader == "python":
        assert problem_of(text).message  # its own words differ; none of them escapes as an exception
    else:
        assert problem_of(text) == Problem("p", line, "", message, hint)


def test_an_alias_bomb_is_refused_before_it_is_written_out() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert problem_of(bomb).message == "holds more than 10000 values, aliases written out"


def test_an_alias_inside_itself_is_refused() -> None:
    assert problem_of("a: &a\n  b: *a").message == "an alias stands inside the very thing that it names"


@pytest.mark.parametrize(
    "text", ["[" * 400_000, "- " * 400_000, "{a: " * 200_000, "? " * 200_000, "[a, " * 60 + "]" * 60]
)
def test_deep_nesting_is_refused_at_once(text: str) -> None:
    assert problem_of(text).message == "is nested more than 50 deep"


def test_each_value_knows_its_line() -> None:
    node, _ = source.read("a: 1\nlist:\n  - use: x\n    rate: 2\n  - [1,\n     2]\n", "p")
    assert node is not None
    assert {path: place.line for path, place in places(node)} == {
        (): 1, ("a",): 1, ("list",): 2, ("list", 0): 3, ("list", 0, "use"): 3, ("list", 0, "rate"): 4,
        ("list", 1): 5, ("list", 1, 0): 5, ("list", 1, 1): 6,
    }  # fmt: skip


_VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(-1e9, 1e9), st.text(max_size=20),
        st.sampled_from(["off", "1e5", "0755", "12:30", "~", "true", "2024-01-01", "", " x", "a: b", "# c", "\x85"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(_VALUES)
def test_what_is_written_reads_back_as_the_same(value: Any) -> None:
    node, problems = source.read(source.dump(value), "p")
    assert problems == []
    assert node is not None
    assert plain(node) == value
    assert repr(plain(node)).replace("0.0", "0") == repr(value).replace("0.0", "0")


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=60))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    node, problems = source.read(data, "p")
    assert node is not None or problems


def test_an_empty_text_is_null() -> None:
    assert source.read("# nothing but a comment\n", "p") == (Node(None, Place("p", None)), [])
