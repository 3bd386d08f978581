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


LOOKED_AT = {"torch": {"skip": 5}, "hold": True, "window": {"skip": 5, "steps": 3, "look": True}}


@pytest.mark.parametrize(
    ("rank", "chosen", "is_looked_at"),
    [("0", [0, 7], True), ("1", [0, 7], False), ("1", None, True), (None, [0], True)],
)
def test_ranks_that_nobody_wants_to_look_at_count_their_steps_alone(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, chosen: list[int] | None, is_looked_at: bool
) -> None:
    for name in boot.RANKS:
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    settings = {**LOOKED_AT, "ranks": chosen}
    monkeypatch.setattr(boot, "settings", settings)
    boot._leave_to_others()
    counted = {"torch": None, "hold": False, "window": {"skip": 5, "steps": 3, "look": False}}
    assert settings == {**(LOOKED_AT if is_looked_at else counted), "ranks": chosen}
    assert LOOKED_AT["window"] == {"skip": 5, "steps": 3, "look": True}


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        (["python", "/opt/venv/bin/torchrun", "--nproc-per-node", "2", "train.py"], True),
        (["python", "-u", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "train.py", "torchrun"], False),
        (["python", "-c", "import torchrun"], False),
        ([], False),
    ],
)
def test_a_launcher_of_ranks_is_no_program(monkeypatch: pytest.MonkeyPatch, words: list[str], starts: bool) -> None:
    monkeypatch.setattr(boot, "_command_line", lambda: words or None)
    assert boot._starts_ranks() is starts
