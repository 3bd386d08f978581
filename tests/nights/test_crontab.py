"""The block in the crontab: put in, replaced, taken out, and not a byte else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S

from orchestrator.errors import PreflightError, UsageError
from orchestrator.nights import crontab
from tests.nights.crontabs import Crontab

OTHERS = b"MAILTO=ada\n# \xe9 in Latin-1, and a tab\t\n5 4 * * * echo 10\\% done\n"
BLOCK = crontab.block("train", "every night", "30 2 * * * true")


def test_a_block_is_put_in_and_taken_out_again() -> None:
    full = crontab.with_block(OTHERS, "train", BLOCK)
    assert full == OTHERS + b"# profrun: begin train\n# every night\n30 2 * * * true\n# profrun: end train\n"
    assert crontab.names(full) == ["train"]
    assert crontab.without_block(full, "train") == OTHERS


def test_put_in_twice_it_is_replaced_where_it_stands() -> None:
    more = crontab.with_block(crontab.with_block(OTHERS, "train", BLOCK), "train2", BLOCK.replace(b"train", b"train2"))
    new = crontab.block("train", "every night", "0 3 * * * false")
    assert crontab.with_block(more, "train", new) == more.replace(BLOCK, new)
    assert crontab.names(more) == ["train", "train2"]


def test_a_table_without_a_last_line_break_gets_one() -> None:
    assert crontab.with_block(b"1 2 3 4 5 x", "train", BLOCK) == b"1 2 3 4 5 x\n" + BLOCK


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_every_other_byte_stays(before: bytes, after: bytes) -> None:
    table = before + (b"" if not before or before.endswith(b"\n") else b"\n") + BLOCK + after
    if b"profrun: " in before + after:
        return
    assert crontab.without_block(table, "train") == table.replace(BLOCK, b"", 1)
    assert crontab.with_block(table, "train", BLOCK) == table


@pytest.mark.parametrize(
    "damaged",
    [BLOCK * 2, BLOCK.partition(b"# profrun: end")[0], BLOCK.partition(b"\n")[2],
     b"# profrun: end train\n# profrun: begin train\n"],
)  # fmt: skip
def test_marks_that_somebody_has_changed_are_not_guessed_at(damaged: bytes) -> None:
    for change in (
        lambda: crontab.without_block(damaged, "train"),
        lambda: crontab.with_block(damaged, "train", BLOCK),
    ):
        with pytest.raises(UsageError, match="can't be told from the rest"):
            change()


def test_a_name_that_begins_like_another_is_another() -> None:
    assert crontab.without_block(BLOCK.replace(b"train", b"train-2"), "train") == BLOCK.replace(b"train", b"train-2")


@pytest.fixture
def cron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crontab:
    made = Crontab(tmp_path / "cron")
    monkeypatch.setenv("PATH", made.env["PATH"])
    monkeypatch.setenv("PROFRUN_STATE", str(made.state))
    return made


def test_a_long_place_is_no_trouble_and_nothing_is_left_there(cron: Crontab, tmp_path: Path) -> None:
    """Vixie's crontab(1) cuts a file's name after 99 bytes."""
    place = tmp_path / ("50% of it " * 12)
    crontab.write(OTHERS, place)
    assert cron.table.read_bytes() == OTHERS == crontab.read(place)
    assert list(place.iterdir()) == []


def test_two_at_once_each_put_their_block_in(cron: Crontab, tmp_path: Path) -> None:
    def put(name: str) -> None:
        with crontab.held():
            table = crontab.read(tmp_path)
            crontab.unchanged(table, tmp_path)
            crontab.write(crontab.with_block(table, name, BLOCK.replace(b"train", name.encode())), tmp_path)

    names = ["one", "two", "three"]
    threads = [threading.Thread(target=put, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(crontab.names(crontab.read(tmp_path))) == sorted(names)


def test_what_somebody_else_has_written_meanwhile_is_not_lost(cron: Crontab, tmp_path: Path) -> None:
    table = crontab.read(tmp_path)
    cron.table.write_bytes(OTHERS)
    with pytest.raises(PreflightError, match="somebody else changes your crontab"):
        crontab.unchanged(table, tmp_path)
    crontab.unchanged(OTHERS, tmp_path)


def test_percent_signs_are_escaped_and_line_breaks_refused() -> None:
    assert crontab.entry("* * * * *", "echo 50% of 'a%b'") == r"* * * * * echo 50\% of 'a\%b'"
    for bad in ("a\nb", "a\rb", "a\0b"):
        with pytest.raises(UsageError, match="can't hold a line break"):
            crontab.entry("* * * * *", bad)
    with pytest.raises(UsageError, match="too long"):
        crontab.entry("* * * * *", "x" * 999)


@pytest.mark.parametrize("end", [b"\r\n", b" \n", b"\t\n", b"\n"])
def test_a_block_is_found_whatever_stands_behind_its_marks(end: bytes) -> None:
    table = b"# profrun: begin train" + end
    assert crontab.names(table) == ["train"]
