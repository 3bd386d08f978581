"""`profrun share`: nothing that was planted in a report is found in its archive, and the archive is a report."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cli
import perfetto_file
import pyarrow
import pyarrow.parquet as pq
import pytest
import sample_report
import two_runs

from orchestrator import commands, folder, report, share
from orchestrator.errors import ReportError, UsageError
from orchestrator.tables import Table

PLANTED = {
    "secret variable": "zqx7731hunter",
    "value of an option": "correcthorse",
    "key by its looks": "AKIAIOSFODNN7EXAMPLE",
    "password in a URL": "s3cretpw",
    "person": "mathilda",
    "host": "gpunode42",
    "domain": "cluster.corp",
    "address": "10.20.30.40",
    "address 6": "fd12:3456:789a::17",
    "hardware address": "52:54:00:ab:cd:ef",
    "e-mail": "mathilda.k@research.example",
    "GPU": "5a3c12ef-1234-5678-9abc-0123456789ab",
    "hidden on request": "Manhattan",
    "key of several lines": "MIIEvQIBADANBgkqh",
}
NOTHING = dict.fromkeys(PLANTED, False)
HOME = f"/home/{PLANTED['person']}/{PLANTED['hidden on request']}"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\nAAAA\n{PLANTED['key of several lines']}\n-----END RSA PRIVATE KEY-----"
PROSE = (
    f"{PLANTED['secret variable']} AWS={PLANTED['key by its looks']} https://u:{PLANTED['password in a URL']}@x.org/ "
    f"{PLANTED['host']}.{PLANTED['domain']} {PLANTED['address']}:22 [{PLANTED['address 6']}] {HOME}/t.py "
    f"{PLANTED['hardware address']} {PLANTED['e-mail']} GPU-{PLANTED['GPU']} "
    f"--api-key={PLANTED['value of an option']} {KEY}"
)
ARGV = ("python", f"{HOME}/train.py", "--password", PLANTED["value of an option"], PROSE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A report folder with all of it everywhere, while the environment holds one of the secrets."""
    place = tmp_path_factory.mktemp("shared") / "reports" / "nightly-20260921T101320Z-kdmw"
    built = planted(two_runs.make(place, two_runs.Job(runs=2, steps=20)))
    target = folder.Folder(place)
    target.write_json("summary.json", report.summary(built))
    target.write_json("machine.json", report.machine_facts(built))
    plan = f"version: 1\nname: n\ndescription: {json.dumps(PROSE)}\ntarget:\n  env: {{WHO: mathilda}}\n"
    person = {"hostname": PLANTED["host"], "user": PLANTED["person"], "why": PROSE}
    for name, text in {
        "plan.yaml": plan,
        "run.log": PROSE,
        "night.md": PROSE,
        "journal.jsonl": json.dumps(person) + '\n{"cut": "' + PROSE,
        "index.html": "",
        "report.md": "",
        "notes.txt": PROSE,
    }.items():
        target.write(name, text)
    raw(place / "raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", PLANTED["secret variable"])
        yield place


def planted(built: report.Report) -> report.Report:
    """Into the command, the machine, findings, captures, environment steps, and the texts of tables."""
    stack = f"main ({HOME}/t.py:1);{PROSE.replace(';', ',')} (x.py:2)"
    moment = (1, 1, "MainThread", sample_report.STARTED_NS, 10**9, f"main ({HOME}/t.py:1)")
    rows = {
        "stacks": (1, f"python {HOME}", "MainThread", "wall", stack, 5, 10**9),
        "stack_spans": moment,
        "syscall_paths": (f"{HOME}/data.bin", 1, 0, 10, 10, PROSE),
    }
    tables = {
        name: sample_report.write(built.folder, Table.of(name, [row]).with_capture("p03-py-spy"))
        for name, row in rows.items()
    }
    facts = {
        "hostname": PLANTED["host"],
        "environment_variables": {"HOME": HOME, "OMP_NUM_THREADS": "8", "NOTE": PROSE},
    }
    where = {"path": f"{HOME}/ckpt.bin"}
    passes = [replace(p, run=p.run and replace(p.run, argv=ARGV), notes=(PROSE,)) for p in built.passes]
    captures = (*built.captures, *(c for c in sample_report.CAPTURES if c.artifacts))
    return replace(
        built,
        run=replace(built.run, command=ARGV, cwd=HOME),
        machine={**built.machine, **facts},
        environment=sample_report.STEPS,
        findings=(replace(sample_report.finding(), title=PROSE, where=where, advice=PROSE),),
        passes=tuple(passes),
        captures=tuple(replace(c, host=PLANTED["host"], notes=(PROSE,), commands=(ARGV,)) for c in captures),
        tables={**built.tables, **tables},
    )


def raw(place: Path) -> None:
    """Of the tools' own files: text, packed text, a database, a dump of memory; and what the program printed."""
    for name in ("p09-py-spy", "p10-strace", "p11-nsys", "p01-target"):
        (place / name).mkdir(parents=True)
    (place / "p10-strace" / "summary.txt").write_text(PROSE + "\n" + "x" * 100 + "\n")
    (place / "p09-py-spy" / "more.json.gz").write_bytes(gzip.compress(json.dumps({"a": PROSE}, indent=1).encode()))
    (place / "p09-py-spy" / "core.4242").write_bytes(b"\x7fELF\0\0" + PROSE.encode())
    (place / "p11-nsys" / "report.nsys-rep").write_bytes(PROSE.encode())
    with sqlite3.connect(place / "p11-nsys" / "report.sqlite") as database:
        database.execute("CREATE TABLE ENV (name TEXT)")
        database.execute("INSERT INTO ENV VALUES (?)", (PROSE,))
    database.close()
    (place / "p01-target" / "stdout.log").write_text(PROSE)
    (place / "run.json").write_text(json.dumps({"run": {"command": ARGV, "cwd": HOME}, "captures": []}))
    (place / "p10-strace" / "command.json").write_text(json.dumps({"commands": [ARGV]}))


# ---------------------------------------------------------------- looking for it


def unpacked(archive: Path, place: Path) -> Path:
    """The folder that the archive holds."""
    with pyarrow.CompressedInputStream(pyarrow.OSFile(str(archive)), "zstd") as stream:
        packed = io.BytesIO(stream.read())
    with tarfile.open(fileobj=packed) as tar:
        for member in tar:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
            target = place / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
    (found,) = place.iterdir()
    return found


def content(place: Path) -> str:
    """Everything that is in a report folder, with what is packed in its files unpacked, and all names."""
    return "\n".join(f"{path.relative_to(place)}\n{_text(path)}" for path in sorted(place.rglob("*")) if path.is_file())


def _text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        texts = [str(table.column(n).unique().to_pylist()) for n in table.column_names]
        return "\n".join([str(table.schema), *texts])
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    if path.suffix == ".perfetto-trace":
        return "\n".join(map(str, perfetto_file.packets(path)))
    text = data.decode("utf-8", "replace")
    flames = [
        gzip.decompress(base64.b64decode(one)).decode("latin-1") for one in re.findall(r">(H4sI[A-Za-z0-9+/=]+)<", text)
    ]
    return "\n".join((text, *flames))


def told(text: str) -> dict[str, bool]:
    return {what: secret.lower() in text.lower() for what, secret in PLANTED.items()}


def shared(run: Path, name: str, *extras: str) -> share.Shared:
    hide = (PLANTED["hidden on request"],)
    return share.share(share.Request(run, run.parent.parent / name, frozenset(extras), hide))


# ---------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def told_to_user(run: Path, tmp_path_factory: pytest.TempPathFactory) -> cli.Result:
    """What the command says that packs it."""
    return cli.profrun("share", run, "--hide", PLANTED["hidden on request"], cwd=tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def place(told_to_user: cli.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive's content."""
    return unpacked(told_to_user.cwd / told_to_user.stdout.strip(), tmp_path_factory.mktemp("there"))


def test_the_command_says_what_it_left_out(run: Path, told_to_user: cli.Result) -> None:
    assert (told_to_user.code, told_to_user.stdout) == (0, f"{report.load(run).run.id}.tar.zst\n")
    assert "left out: files in which a tool has kept the program's environment: 2 files" in told_to_user.stderr
    assert told(told_to_user.stderr) == NOTHING


def test_nothing_planted_is_in_the_archive(run: Path, place: Path) -> None:
    assert all(told(content(run)).values()), "else this test could not fail"
    found = content(place)
    assert told(found) == NOTHING
    assert "host-1" in found and "/home/user-1/" in found and "OMP_NUM_THREADS" in found
    assert not (place / "raw").exists()


def test_the_archive_is_a_report(run: Path, place: Path) -> None:
    before, after = report.load(run), report.load(place)
    assert {name: info.rows for name, info in after.tables.items()} == {n: i.rows for n, i in before.tables.items()}
    assert after.metrics == before.metrics
    assert [c.artifacts for c in after.captures] == [()] * len(after.captures), "files that are not there are not named"
    done = cli.profrun("show", place, cwd=place)
    assert done.code == 0 and done.stdout
    page = (place / "index.html").read_text()
    assert "report.nsys-rep" not in page and "user-1" in page
    about = (place / "SHARED.md").read_text()
    for what in ("raw/p11-nsys/report.sqlite", "raw/p01-target/stdout.log", "notes.txt", "2 hosts got another name"):
        assert what in about


def test_equal_reports_equal_bytes(run: Path, told_to_user: cli.Result) -> None:
    packed = (told_to_user.cwd / told_to_user.stdout.strip()).read_bytes()
    assert shared(run, "again.tar.zst").path.read_bytes() == packed


def test_raw_files_and_output_on_request_are_cleaned(run: Path, tmp_path: Path) -> None:
    done = shared(run, "raw.tar.zst", "raw", "output")
    place = unpacked(done.path, tmp_path / "there")
    assert told(content(place)) == NOTHING
    kept = {str(path.relative_to(place / "raw")) for path in (place / "raw").rglob("*") if path.is_file()}
    own = {"p09-py-spy/more.json.gz", "p10-strace/summary.txt", "p10-strace/command.json"}
    assert kept == {*own, "run.json", "p01-target/stdout.log"}
    why = {one.path: one.why for one in done.left}
    assert why.pop("notes.txt") == "strange"
    nsys = dict.fromkeys(("raw/p11-nsys/report.nsys-rep", "raw/p11-nsys/report.sqlite"), "environment")
    assert why == {**nsys, "raw/p09-py-spy/core.4242": "binary"}
    assert share.UNSURE in done.told()
    (strace,) = (c for c in report.load(place).captures if c.id == "p10-strace")
    assert [one.path for one in strace.artifacts] == ["raw/p10-strace/summary.txt"]


def test_names_stay_on_request_and_secrets_do_not(run: Path, tmp_path: Path) -> None:
    found = told(content(unpacked(shared(run, "names.tar.zst", "names").path, tmp_path / "there")))
    names = ("person", "host", "domain", "address", "address 6", "hardware address", "e-mail", "GPU")
    assert found == {what: what in names for what in PLANTED}


def test_long_texts_are_cleaned_piece_by_piece(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever a piece ends: a key of several lines is not cut in two."""
    path = run / "raw" / "p10-strace" / "summary.txt"
    path.write_text("\n".join(["x" * 30] * 40 + [PROSE] + ["y" * 30] * 40))
    for size in (64, 333, 1000):
        monkeypatch.setattr(share, "_GROUP_BYTES", size)
        text = "".join(share._groups(path.open("rb")))
        assert text == path.read_text()
        stage = folder.Folder(tmp_path / str(size))
        veil = share._veil(report.load(run), share.Request(run, hide=(PLANTED["hidden on request"],)))
        assert share._cleaned(path, stage, "a.txt", veil)
        assert told((stage.path / "a.txt").read_text()) == NOTHING


def test_what_can_not_be_shared(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="raw, output, names"):
        commands.run(["share", str(run), "--with", "everything"])
    (tmp_path / "there.tar.zst").touch()
    with pytest.raises(UsageError, match="not overwritten"):
        share.share(share.Request(run, tmp_path / "there.tar.zst"))
    with pytest.raises(UsageError, match="no name for it"):
        share.share(share.Request(run, tmp_path / "run.zip"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError):
        share.share(share.Request(tmp_path / "empty", tmp_path / "x.tar.zst"))
    assert [path.name for path in tmp_path.glob("*.tar.zst*")] == ["there.tar.zst"]


def test_what_is_damaged_is_left_out_and_told(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gz").write_bytes(gzip.compress(b"text" * 100)[:-30] + b"\xff" * 30)
    stage = folder.Folder(tmp_path / "stage")
    assert not share._cleaned(
        tmp_path / "bad.gz", stage, "raw/bad.gz", share._veil(report.load(run), share.Request(run))
    )
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "plan.yaml").write_text("a: [b\n")
    done = share.share(share.Request(copy, tmp_path / "x.tar.zst"))
    assert ("plan.yaml", "damaged") in {(one.path, one.why) for one in done.left}
