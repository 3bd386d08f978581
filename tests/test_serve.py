"""`profrun open`: who gets what from the server of a report, over real HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import sample_report
from cli import command, environment
from waiting import LIMIT_S, until

from orchestrator import commands, process, serve
from orchestrator.errors import PreflightError, ReportError, UsageError
from orchestrator.model import Artifact, Capture
from orchestrator.render import served
from orchestrator.report import Report, summary

GUEST = "https://speedscope.example"
PAGE = "<!doctype html><title>the page</title>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report with a page, a timeline, flame graphs, and what should not be had through it."""
    folder = tmp_path_factory.mktemp("reports") / "run"
    for name, text in {
        "index.html": PAGE,
        "timeline.json.gz": "a timeline",
        "flamegraphs/p 09.speedscope.json": "{}",
        "raw/p09-py-spy/a trace #1.json": '{"traceEvents": []}',
        "raw/names/100 % \udce9é&<b>.log": "odd",
        "../secret.txt": "secret",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "out.txt").symlink_to("../secret.txt")
    (folder / "up").symlink_to("..")
    (folder / "in.html").symlink_to("index.html")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    trace = Artifact("profile", "raw/p09-py-spy/a trace #1.json", "chrometrace", 19, "", 0)
    report = sample_report.bare(folder)
    captures = (Capture("p09-py-spy", "p09", "py-spy", "ok", artifacts=(trace,)),)
    report = Report(report.run, report.outcome, {}, captures=captures, folder=folder)
    (folder / "summary.json").write_text(json.dumps(summary(report)))
    return report


@dataclass(frozen=True)
class Got:
    status: int
    headers: http.client.HTTPMessage
    body: str


class Client:
    """Asks one server."""

    def __init__(self, server: serve.Server) -> None:
        self.site, self._port = server.site, server.server_port

    def get(self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None) -> Got:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        connection.request(method, path, headers=dict(headers or {}))
        reply = connection.getresponse()
        got = Got(reply.status, reply.headers, reply.read().decode("utf-8", "surrogateescape"))
        connection.close()
        return got

    def file(self, name: str, **more: Mapping[str, str]) -> Got:
        return self.get(f"/{self.site.token}/report/{name}", **more)  # type: ignore[arg-type]


@contextmanager
def serving(report: Report, idle_s: float = LIMIT_S) -> Iterator[Client]:
    server = serve.Server(serve.Site(report, serve.PERFETTO, f"{GUEST}/app/"), "127.0.0.1", 0, idle_s)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with server:
        yield Client(server)
        server.end()
        thread.join(LIMIT_S)


@pytest.fixture(scope="module")
def client(report: Report) -> Iterator[Client]:
    with serving(report) as asking:
        yield asking


# ---------------------------------------------------------------- who gets in


def test_the_token_opens_the_page_and_its_files(client: Client) -> None:
    frame = client.get(f"/{client.site.token}/")
    assert (frame.status, frame.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert 'src="report/index.html"' in frame.body
    assert client.file("index.html").body == PAGE
    assert client.get(f"/{client.site.token}").headers["Location"] == f"/{client.site.token}/"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/index.html",
        "/report/index.html",
        "/TOKEN0/",
        "/TOKE/report/index.html",
        "/%54OKEN/",
        "/é/",
    ],
)
def test_without_the_token_there_is_nothing(client: Client, path: str) -> None:
    got = client.get(
        quote(path.replace("TOKEN", client.site.token).replace("TOKE/", f"{client.site.token[:-1]}/"), "/%")
    )
    assert got.status == 403
    assert "use the address" in got.body
    assert client.site.token not in got.body + str(got.headers)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[", "a@b"]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(client: Client, host: str) -> None:
    got = client.get(f"/{client.site.token}/", headers={"Host": host})
    assert (got.status, "localhost" in got.body) == (403, True)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8123", "127.3.2.1", "[::1]:9"])
def test_a_tunnel_may_have_another_port(client: Client, host: str) -> None:
    assert client.get(f"/{client.site.token}/", headers={"Host": host}).status == 200


def test_a_request_without_a_host_is_refused(client: Client) -> None:
    assert client.site.answer("GET", f"/{client.site.token}/", {}).status == 403


def test_the_word_on_the_browsers_command_line_opens_once(report: Report) -> None:
    with serving(report) as client:
        entry = f"/in/{client.site.entry}"
        assert client.get(entry, "HEAD").status == 303
        assert client.get(entry).headers["Location"] == f"/{client.site.token}/"
        assert client.get(entry).status == 403
        assert client.get("/in/").status == 403


# ---------------------------------------------------------------- what is given


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "up/secret.txt", "out.txt", "%2Fetc%2Fpasswd"),
        *("/etc/passwd", "fifo", "raw", "", ".", "loop", "nothing", "index.html%00.txt", "raw/../../secret.txt"),
    ],
)
def test_only_regular_files_of_the_report_are_given(client: Client, name: str) -> None:
    got = client.file(name)
    assert (got.status, got.body) == (404, "There is no such file in this report.\n")


def test_links_within_the_report_are_followed(client: Client) -> None:
    assert client.file("in.html").body == PAGE


def test_names_may_hold_anything(client: Client) -> None:
    assert client.file(quote(os.fsencode("raw/names/100 % \udce9é&<b>.log"))).body == "odd"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("summary.json", "application/json; charset=utf-8"),
        ("timeline.json.gz", "application/gzip"),
        (quote(os.fsencode("raw/names/100 % \udce9é&<b>.log")), "text/plain; charset=utf-8"),
    ],
)
def test_every_file_has_its_type_and_is_kept_nowhere(client: Client, name: str, kind: str) -> None:
    headers = client.file(name).headers
    assert headers["Content-Type"] == kind
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert "sandbox" in policy and "allow-same-origin" not in policy
    assert "default-src 'none'" in policy and "connect-src" not in policy


def test_head_tells_the_size_and_nothing_else(client: Client) -> None:
    got = client.file("index.html", method="HEAD")  # type: ignore[arg-type]
    assert (got.status, got.headers["Content-Length"], got.body) == (200, str(len(PAGE)), "")


@pytest.mark.parametrize(("method", "status"), [("POST", 501), ("PUT", 501), ("DELETE", 501), ("OPTIONS", 405)])
def test_nothing_can_be_changed(client: Client, method: str, status: int) -> None:
    assert client.file("index.html", method=method).status == status  # type: ignore[arg-type]


def test_the_frame_asks_this_server_alone(client: Client) -> None:
    policy = client.get(f"/{client.site.token}/").headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["connect-src"], rules["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert rules["script-src"].startswith("'sha256-") and rules["style-src"].startswith("'sha256-")


# ---------------------------------------------------------------- speedscope, from elsewhere


def guest(client: Client, name: str = "flamegraphs/p 09.speedscope.json") -> str:
    return client.site.address_for_guest(name)


def test_a_guest_gets_its_one_file(client: Client) -> None:
    got = client.get(guest(client), headers={"Origin": GUEST})
    assert (got.status, got.body) == (200, "{}")
    assert (got.headers["Access-Control-Allow-Origin"], got.headers["Vary"]) == (GUEST, "Origin")
    assert client.site.token not in guest(client)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://speedscope.example", None])
def test_others_may_not_read_it(client: Client, origin: str | None) -> None:
    got = client.get(guest(client), headers={"Origin": origin} if origin else {})
    assert got.headers["Access-Control-Allow-Origin"] is None


def test_the_key_opens_nothing_else(client: Client) -> None:
    key = guest(client).split("/")[2]
    for path in (
        f"/one/{key}/summary.json",
        f"/one/{key}/",
        "/one/",
        f"/one/{key}x/p",
        f"/{key}/",
        "/one//summary.json",
    ):
        assert client.get(path, headers={"Origin": GUEST}).status == 403
    assert client.get(guest(client, "../secret.txt"), headers={"Origin": GUEST}).status == 404


def test_a_browser_may_ask_first(client: Client) -> None:
    asked = {"Origin": GUEST, "Access-Control-Request-Private-Network": "true"}
    got = client.get(guest(client), "OPTIONS", asked)
    assert got.status == 204
    assert got.headers["Access-Control-Allow-Private-Network"] == "true"
    assert got.headers["Access-Control-Allow-Origin"] == GUEST
    assert (
        client.get(guest(client), "OPTIONS", {**asked, "Origin": "null"}).headers["Access-Control-Allow-Origin"] is None
    )


def test_what_the_two_uis_are_offered(report: Report) -> None:
    assert [(r.path, r.name, r.size) for r in served.traces(report)] == [
        ("timeline.json.gz", "timeline", "10 B"),
        ("raw/p09-py-spy/a trace #1.json", "p09-py-spy", "19 B"),
    ]
    assert [r.name for r in served.profiles(report)] == ["p 09"]


def test_without_recordings_there_are_no_buttons(tmp_path: Path) -> None:
    text, _ = served.page(sample_report.bare(tmp_path), serve.PERFETTO, serve.SPEEDSCOPE, str)
    assert "<button" not in text and "speedscope</a>" not in text


# ---------------------------------------------------------------- the verb


def started(report: Report, *options: str, **env: str | None) -> subprocess.Popen[str]:
    argv = command("open", str(report.folder), *options)
    given = environment(**{"BROWSER": None, "DISPLAY": None, "WAYLAND_DISPLAY": None, "SSH_CONNECTION": None, **env})
    return subprocess.Popen(argv, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_it_and_is_no_failure(report: Report) -> None:
    running = started(report, SSH_CONNECTION="10.0.0.9 50000 10.0.0.2 22", USER="ada", BROWSER=None)
    assert running.stdout is not None
    address = urlsplit(running.stdout.readline().strip())
    connection = http.client.HTTPConnection(str(address.hostname), int(address.port or 0), timeout=LIMIT_S)
    connection.request("GET", address.path)
    assert connection.getresponse().status == 200
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0
    assert "until Ctrl-C or 2 h without a request" in said
    assert "ui.perfetto.dev and www.speedscope.app" in said and "send it nowhere" in said
    assert f"ssh -N -L {address.port}:127.0.0.1:{address.port} ada@" in said
    assert address.path.strip("/") not in said


def test_it_ends_when_nobody_asks(report: Report) -> None:
    running = started(report, "--idle", "100ms", "--no-browser")
    said = running.communicate(timeout=LIMIT_S)[1]
    assert running.returncode == 0
    assert said.endswith("profrun: the report is no longer served\n")


def test_the_browser_gets_an_address_that_opens_once(report: Report, tmp_path: Path) -> None:
    note = tmp_path / "note"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {note}.new && mv {note}.new {note}\n')
    browser.chmod(0o755)
    running = started(report, BROWSER=f"/nowhere/browser:{browser} --new %s")
    until(note.exists)
    running.send_signal(signal.SIGINT)
    shown = running.communicate(timeout=LIMIT_S)[0]
    token = urlsplit(shown.strip()).path.strip("/")
    first, address = note.read_text().splitlines()
    assert first == "--new"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/in/[\w-]{32}", address)
    assert token not in address


def test_without_a_browser_none_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not process.browse("http://127.0.0.1:1/")
    monkeypatch.setenv("BROWSER", "/nowhere/browser")
    assert not process.browse("http://127.0.0.1:1/")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_no_other_machine_is_served(report: Report, host: str) -> None:
    with pytest.raises(UsageError, match="its own machine alone"):
        serve.serve(report, serve.Request(host=host))


def test_a_port_that_is_taken_is_told(report: Report) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PreflightError, match="can't be had") as caught:
        serve.serve(report, serve.Request(port=other.getsockname()[1]))
    assert "leave --port out" in caught.value.text()


def test_a_report_without_a_page_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no page to show") as caught:
        serve.serve(sample_report.bare(tmp_path), serve.Request())
    assert "report.formats" in caught.value.text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "'70000' is no port"),
        (["--idle", "0s"], "--idle: must be more than 0"),
        (["--perfetto-ui", "ui.example"], "no address such as"),
        (["--speedscope-ui", "javascript:x"], "no address such as"),
        (["--perfetto-ui", "https://x.example/#a"], "no address such as"),
    ],
)
def test_mistakes_on_the_command_line(report: Report, words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        commands.run(["open", str(report.folder), *words])
