"""What a process knows of its rank, and of those that run beside it."""

from __future__ import annotations

import pytest

from orchestrator.inject import boot

NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")


@pytest.mark.parametrize(
    ("told", "rank", "here"),
    [
        ({}, None, None),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1, [0, 2]),
        ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, 5, [4, 4]),
        ({"SLURM_PROCID": "3"}, 3, None),
        ({"PMI_RANK": "0", "WORLD_SIZE": "many"}, 0, None),
        ({"WORLD_SIZE": "2"}, None, None),
    ],
)
def test_ranks(monkeypatch: pytest.MonkeyPatch, told: dict[str, str], rank: int | None, here: list[int] | None) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    assert (boot.rank(), boot.ranks_here()) == (rank, here)
