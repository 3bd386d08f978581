"""The history in a PostgreSQL that several share: a server of the test's own, on a socket, with a password."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sample_report
from cli import environment, profrun, write_plan
from waiting import LIMIT_S, until

from orchestrator import history
from orchestrator.errors import HistoryError
from orchestrator.folder import Folder
from orchestrator.historic import store
from orchestrator.model import Metric
from orchestrator.report import Report, load, summary

pytestmark = pytest.mark.tool("postgres", "initdb", "setpriv")
PASSWORD = "geheim:@/1"
QUOTED = "geheim%3A%40%2F1"


@dataclass(frozen=True)
class Server:
    """A running server, and whose it is."""

    place: Path
    as_owner: tuple[str, ...]
    programs: Path

    @property
    def url(self) -> str:
        return f"postgresql://ada:{QUOTED}@/postgres?host={self.place}"

    def sql(self, text: str) -> str:
        argv = ["psql", "-h", str(self.place), "-U", "ada", "-d", "postgres", "-Atqc", text]
        return self.run(*argv).strip()

    def run(self, *argv: str) -> str:
        env = {**os.environ, "PGPASSWORD": PASSWORD, "LC_ALL": "C.UTF-8"}
        words = [*self.as_owner, str(self.programs / argv[0]), *argv[1:]]
        done = subprocess.run(words, env=env, cwd=self.place, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    place = Path(tempfile.mkdtemp(prefix="profrun-pg-", dir="/tmp"))
    found = shutil.which("initdb") or max(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    owner: tuple[str, ...] = ()
    if os.geteuid() == 0:  # the server refuses to be root's
        owner = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
        shutil.chown(place, "postgres", "postgres")
    made = Server(place, owner, Path(found).resolve().parent)
    running = _start(made)
    try:
        yield made
    finally:
        running.send_signal(signal.SIGINT)  # PostgreSQL: end at once, in order
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(LIMIT_S)
        running.kill()
        shutil.rmtree(place, ignore_errors=True)


def _start(made: Server) -> subprocess.Popen[bytes]:
    word = made.place / "word"
    word.write_text(PASSWORD)
    word.chmod(0o644)
    data = str(made.place / "data")
    made.run("initdb", "-D", data, "-U", "ada", "-A", "scram-sha-256", f"--pwfile={word}", "-N", "-E", "UTF8")
    options = ["-D", data, "-k", str(made.place), "-c", "listen_addresses=", "-c", "fsync=off"]
    log = (made.place / "log").open("wb")
    running = subprocess.Popen(
        [*made.as_owner, str(made.programs / "postgres"), *options], cwd=made.place, stdout=log, stderr=log
    )
    log.close()
    until(lambda: "ready to accept connections" in (made.place / "log").read_text(errors="replace"))
    return running


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database's URL."""
    monkeypatch.delenv(history.VARIABLE, raising=False)
    names = ", ".join(table.name for table in store.TABLES)
    server.sql(f"SET client_min_messages = warning; DROP TABLE IF EXISTS {names}")
    return server.url


def kept(folder: Path, stamp: str = "20260921T101320Z-kdmw") -> Report:
    path = folder / f"train-{stamp}"
    path.mkdir(parents=True)
    sample = sample_report.diagnosed(path)
    machine = {**sample.machine, "hostname": platform.node()}
    run = replace(sample.run, id=path.name, name="train", started_at=f"2026-09-{stamp[6:8]}T10:13:20Z")
    report = replace(sample, run=run, machine=machine)
    Folder(path).write_json("summary.json", summary(report))
    return load(path)


def _never(text: str) -> None:
    raise AssertionError(text)


def test_it_remembers_what_the_file_beside_the_reports_does(url: str, tmp_path: Path) -> None:
    report = kept(tmp_path)
    odd = replace(report, findings=(replace(report.findings[0], title="a\0b \udcff"), *report.findings[1:]))
    for where in (None, url):
        history.record(odd, where, _never)
        history.set_verdict(odd.run.id, "suspect", "3 sd \0", where=where or tmp_path)
        history.record(odd, where, _never)
    assert history.nights("train", where=url) == history.nights("train", where=tmp_path)
    assert history.nights("train", where=url)[0].verdict == "suspect"


def _record(url: str, place: str, who: int) -> None:
    for n in range(3):
        report = sample_report.bare(Path(place))
        run = replace(report.run, id=f"train-{who}-{n}", name="train")
        history.record(replace(report, run=run, metrics={"step_s": Metric(0.1 + n, "s")}), url, _never)


def test_runs_that_are_the_first_at_once_are_all_remembered(url: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_record, args=(url, str(tmp_path), who)) for who in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LIMIT_S)
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert len(history.nights("train", where=url)) == 9


def test_folders_of_other_hosts_are_not_taken_for_gone(url: str, tmp_path: Path) -> None:
    own, lost = kept(tmp_path, "20260921T101320Z-kdmw"), kept(tmp_path, "20260922T101320Z-kdmx")
    elsewhere = replace(own, run=replace(own.run, id="train-elsewhere"), folder=Path("/elsewhere/reports/x"))
    history.record(replace(elsewhere, machine={**own.machine, "hostname": "another"}), url, _never)
    assert history.rebuild(tmp_path, url).found == 2
    shutil.rmtree(lost.folder)
    done = history.rebuild(tmp_path, url)
    assert (done.found, done.gone) == (1, 1)
    assert {one.run_id: one.gone for one in history.nights("train", where=url)} == {
        own.run.id: False, lost.run.id: True, "train-elsewhere": False,
    }  # fmt: skip
    assert history.rebuild(tmp_path, url, prune=True).forgotten == 1
    assert len(history.nights("train", where=url)) == 2


def test_a_run_and_its_trend_by_the_plan_and_by_the_variable(url: str, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 2}", report=f"{{formats: [], history: '{url}'}}")
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert result.code == 0 and "history" not in result.stderr
    assert not (tmp_path / "reports" / store.FILE).exists()
    for path in result.folder.rglob("*"):
        assert not path.is_file() or QUOTED.encode() not in path.read_bytes(), path
    env = environment(PROFRUN_HISTORY=url)
    listed = profrun("history", cwd=tmp_path, env=env)
    assert listed.stdout.startswith("Runs in postgresql+psycopg://ada:***@/postgres") and "test" in listed.stdout
    told = profrun("history", "test", "--db", url, cwd=tmp_path)
    assert "wall time of 1 run" in told.stdout and "kdm" not in told.stdout
    assert PASSWORD not in listed.stdout + told.stdout and QUOTED not in listed.stdout + told.stdout


def test_a_wrong_password_is_one_warning_that_does_not_tell_it(server: Server, url: str, tmp_path: Path) -> None:
    wrong = url.replace(QUOTED, "falsch-geraten")
    said: list[str] = []
    history.record(kept(tmp_path), wrong, said.append)
    assert len(said) == 1 and "password authentication failed" in said[0] and "falsch-geraten" not in said[0]
    with pytest.raises(HistoryError, match="password authentication failed"):
        history.nights("train", where=wrong)


def test_who_may_only_read_can_read(server: Server, url: str, tmp_path: Path) -> None:
    history.record(kept(tmp_path), url, _never)
    server.sql("CREATE ROLE bob LOGIN PASSWORD 'x'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO bob")
    bobs = url.replace(f"ada:{QUOTED}", "bob:x")
    try:
        assert len(history.nights("train", where=bobs)) == 1
        with pytest.raises(HistoryError, match="permission denied"):
            history.set_verdict("train-x", "accepted", where=bobs)
    finally:
        server.sql("DROP OWNED BY bob; DROP ROLE bob")


def test_without_tables_there_are_no_runs_and_none_are_made_by_looking(server: Server, url: str) -> None:
    assert history.nights("train", where=url) == []
    assert history.overview(url) == ([], 0)
    assert server.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'profrun%'") == "0"
