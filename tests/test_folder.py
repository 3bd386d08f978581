"""The report folder: new every time, whole files, clear refusals."""

from __future__ import annotations

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import folder
from orchestrator.errors import FolderError


def test_a_new_folder_is_private_and_latest_points_at_it(tmp_path: Path) -> None:
    first = folder.create(tmp_path / "reports", "my run")
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    assert first.path.name.startswith("my-run-")
    second = folder.create(tmp_path / "reports", "my run")
    assert (tmp_path / "reports" / "latest").resolve() == second.path.resolve()


def test_many_runs_in_one_second_never_share_a_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: folder.create(tmp_path, "x").path, range(40)))
    assert len(set(made)) == 40


def test_somebodys_own_file_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("mine")
    folder.create(tmp_path, "x")
    assert (tmp_path / "latest").read_text() == "mine"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "...", "ünï"])
def test_names_cannot_leave_the_parent(tmp_path: Path, name: str) -> None:
    assert folder.create(tmp_path, name).path.parent == tmp_path


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="can't be made") as caught:
        folder.create(tmp_path / "file", "x")
    assert caught.value.exit_code == 3
    assert "-o DIR" in caught.value.next_step


def test_a_full_disk_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(FolderError, match="no room"):
        folder.create(tmp_path, "x")
    assert list(tmp_path.iterdir()) == []


def test_a_write_replaces_the_whole_file_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder.create(tmp_path, "x")
    made.write("report.md", "old")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        made.write("report.md", "new")
    assert (made.path / "report.md").read_text() == "old"
    assert [p.name for p in made.path.iterdir() if p.name.startswith(".")] == []


def test_texts_are_scrubbed(tmp_path: Path) -> None:
    made = folder.create(tmp_path, "x", scrub=lambda text: text.replace("secret", "***"))
    made.write("a.txt", "a secret")
    made.append("b.txt", "a secret")
    made.write_json("c.json", {"a": "secret"})
    assert all("secret" not in (made.path / name).read_text() for name in ("a.txt", "b.txt", "c.json"))


def test_raw_files_move_across_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder.create(tmp_path, "x")
    source = tmp_path / "scratch"
    source.mkdir()
    (source / "data").write_bytes(b"1" * 1000)

    def other_device(self: Path, target: Path) -> Path:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", other_device)
    moved = made.move_in(source, "p01-x")
    assert (moved / "data").stat().st_size == 1000
    assert not source.exists()


def test_scratch_falls_back_when_tmpdir_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    made = folder.scratch()
    assert made.is_dir()
    assert os.access(made, os.W_OK)
    folder.remove(made)
    assert not made.exists()


def test_scratch_space_is_taken_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    full = {str(tmp_path)}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=0 if place in full else 1 << 30))
    elsewhere = folder.scratch()
    assert elsewhere.is_absolute()
    assert tmp_path not in elsewhere.parents
    folder.remove(elsewhere)
    full |= {"/tmp", "/var/tmp", "."}
    with pytest.raises(FolderError, match="no place for temporary files"):
        folder.scratch()


def test_no_link_is_left_where_latest_can_not_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", refuse)
    made = folder.create(tmp_path, "x").path
    assert list(tmp_path.iterdir()) == [made]
