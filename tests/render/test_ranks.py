"""The section of the ranks: which are shown, what the strip's cells say, in the page and in Markdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sample_report
from rank_data import MS, Work, record, report, seen, tables

from orchestrator.model import Exit
from orchestrator.render import html, markdown, ranks
from orchestrator.report import Report


def made(folder: Path, count: int, work: Work | None, many: int = 20, **more: object) -> Report:
    """A whole report whose tables of ranks these are."""
    found = tables(count, work, many, **more)  # type: ignore[arg-type]
    own = report(folder, {name: found[name] for name in ("ranks", "rank_steps") if name in found})
    return replace(sample_report.bare(folder), tables=own.tables, captures=own.captures)


def test_nothing_of_one_rank(tmp_path: Path) -> None:
    one = made(tmp_path, 1, lambda rank, step: 50 * MS)
    assert ranks.ranks(one) is None and 'id="ranks"' not in html.render(one) and "## Ranks" not in markdown.render(one)


def test_few_ranks_are_all_shown(tmp_path: Path) -> None:
    job = made(tmp_path, 3, lambda rank, step: (30 + 20 * rank) * MS)
    found = ranks.ranks(job)
    assert found is not None and found.rest == () and [row.rank for row in found.shown] == [0, 1, 2]
    last = found.shown[2]
    assert (last.step, last.behind, last.last, last.waits, last.tone) == (
        "100 ms",
        "20 ms",
        "100.0 %",
        "30.0 %",
        "warn",
    )
    assert found.shown[0].behind == "\N{MINUS SIGN}20 ms"
    assert [key for key, _ in found.columns] == [
        "pid", "step", "p95", "behind", "last", "waits", "data", "ended",
    ], "what is known of none has no column"  # fmt: skip
    assert found.lead == (
        "3 ranks. Furthest behind is rank 2: 20 ms a step in the mean against the median rank; it comes last in "
        "18 of 18 steps that all have."
    )
    page, text = html.render(job), markdown.render(job)
    assert found.lead in page and found.lead in text and "The other" not in page[page.index('id="ranks"') :][:9000]
    assert "Compared is what each rank has to do itself" in text


def test_of_many_ranks_the_worst_and_one_in_the_middle_are_open(tmp_path: Path) -> None:
    hosts = record([seen(rank, host=f"n{rank // 8}", exit=Exit(9) if rank == 5 else Exit(0)) for rank in range(100)])
    job = made(tmp_path, 100, lambda rank, step: (30 + (rank == 77) * 40) * MS + rank * 1000, 4, told=hosts)
    found = ranks.ranks(job)
    assert found is not None and len(found.shown) == ranks.SHOWN and len(found.rest) == 100 - ranks.SHOWN
    assert {5, 77, 99} < {row.rank for row in found.shown} and found.lead.startswith("100 ranks on 13 hosts.")
    assert next(row for row in found.shown if row.rank == 5).tone == "bad"
    page = html.render(job)
    assert "<summary>The other 88 ranks</summary>" in page and f'aria-label="{found.heat.label}"' in page  # type: ignore[union-attr]


def test_the_strip_says_who_was_behind_when(tmp_path: Path) -> None:
    found = ranks.ranks(made(tmp_path, 4, lambda rank, step: (50 if rank == 3 and step > 7 else 20) * MS))
    assert found is not None and found.heat is not None
    heat = found.heat
    kinds = dict(heat.shapes)
    assert set(kinds) == {"even", "later"} and (heat.first, heat.final, heat.size) == (2, 19, (1, 1))
    assert kinds["later"] == "M333.3 30H1000.0V40H333.3z", "the fourth row, from its seventh column on"
    assert [text for _, text in heat.labels] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert "rank 3 came last in 66.7 % of them" in heat.label
    assert dict(heat.legend)["later"] == "up to 30 %"


@pytest.mark.parametrize(("count", "steps"), [(1024, 500), (65, 3), (2, 161)])
def test_a_strip_of_any_size_has_few_cells_and_loses_nobody(count: int, steps: int) -> None:
    import pandas

    lag = np.zeros((steps, count))
    lag[steps // 2, count - 1] = 50.0
    heat = ranks._heat(pandas.DataFrame(lag), 100.0)
    assert heat.height <= ranks.ROWS * ranks.CELL and heat.size[0] * ranks.ROWS >= count
    assert sum(len(path) for _, path in heat.shapes) < 20_000
    assert dict(heat.shapes)["latest"].count("M") == 1, "the one cell that is late is to be seen"


def test_hosts_have_no_markup_of_their_own(tmp_path: Path) -> None:
    evil = record([seen(rank, host="<script>alert(1)</script>|x") for rank in range(2)])
    job = made(tmp_path, 2, lambda rank, step: 50 * MS, told=evil)
    assert "<script>alert(1)" not in html.render(job) and "|x" not in markdown.render(job).replace("\\|x", "")


def test_without_common_steps_the_lead_says_so(tmp_path: Path) -> None:
    found = ranks.ranks(made(tmp_path, 2, None, many=2))
    assert found is not None and found.heat is None and "can't be compared" in found.lead and found.judged is None
