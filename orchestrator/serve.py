"""A report on a port of this machine, for its user alone: on loopback, behind a random token, and only its own files.

The standard library's server is enough for one reader of static files, and adds nothing to what profrun installs; a web
framework would. Three things on the same machine could want what is served: other users (they do not know the token),
pages from elsewhere that have their own name point at 127.0.0.1 (DNS rebinding: their Host is not of this machine), and
a report with a script in it (every file of it is shown in a sandbox that may ask nobody for anything). The token stands
in the path: a cookie of 127.0.0.1 would be sent to the servers of all its ports."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import platform
import secrets
import shlex
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any
from urllib.parse import quote, unquote, urlsplit

from orchestrator import process
from orchestrator.errors import PreflightError, ReportError, UsageError
from orchestrator.render import served
from orchestrator.report import Report
from orchestrator.units import show_duration

PERFETTO = "https://ui.perfetto.dev"
SPEEDSCOPE = "https://www.speedscope.app"
IDLE_S = 7200.0
_LOOK_S = 0.5
_PATIENCE_S = 30.0
"""For the next piece of a request, and for a reader to take the next piece of a reply."""
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
    ".gz": "application/gzip",
    ".png": "image/png",
    **dict.fromkeys((".md", ".yaml", ".jsonl", ".log", ".txt", ".folded", ".csv"), "text/plain; charset=utf-8"),
}
_SANDBOX = (
    "sandbox allow-scripts allow-popups allow-popups-to-escape-sandbox allow-downloads allow-modals; "
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""For every file of the report. Its own policy, which the page carries with it, holds as well."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for. perfetto, speedscope: addresses of the two UIs."""

    host: str = "127.0.0.1"
    port: int = 0
    idle_s: float = IDLE_S
    browser: bool = True
    perfetto: str = PERFETTO
    speedscope: str = SPEEDSCOPE


@dataclass(frozen=True)
class Reply:
    """An answer: its content is `text`, or what is left of `file`."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    text: bytes = b""
    file: IO[bytes] | None = None
    size: int = 0


# ---------------------------------------------------------------- what is answered


class Site:
    """What there is to be had, as a function from a request to its reply. Knows nothing of sockets.

    /TOKEN/             the page in its frame, with the buttons
    /TOKEN/report/PATH  a file of the report
    /one/KEY/PATH       one file for a page from elsewhere, which must not learn the token: the key opens only this file
    /in/WORD            leads to the page, once: a browser's command line can be read by all users of the machine"""

    def __init__(self, report: Report, perfetto: str, speedscope: str) -> None:
        self.root = report.folder.resolve()
        self.token = secrets.token_urlsafe(24)
        self.entry = secrets.token_urlsafe(24)
        self.guest = _origin(speedscope)
        self._report, self._addresses = report, (perfetto, speedscope)

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        """headers: by their names in small letters."""
        host = headers.get("host")
        if host is None or not _is_ours(host):
            return _words(403, "This server answers to the name of this machine alone: localhost, or 127.0.0.1.")
        first, _, rest = path.partition("?")[0].removeprefix("/").partition("/")
        if first == "one":
            return self._for_guest(method, rest, headers.get("origin"))
        if method == "OPTIONS":
            return Reply(405, {"Allow": "GET, HEAD"})
        if first == "in" and self.entry and _equal(rest, self.entry):
            self.entry = "" if method == "GET" else self.entry
            return Reply(303, {"Location": f"/{self.token}/"})
        if not _equal(first, self.token):
            return _words(403, "A wrong token: use the address that `profrun open` has printed, as it stands.")
        if not rest:
            return self._page() if path.endswith("/") else Reply(303, {"Location": f"/{self.token}/"})
        area, _, name = rest.partition("/")
        return self._file(unquote(name, errors="surrogateescape")) if area == "report" else _NOT_FOUND

    def _page(self) -> Reply:
        text, policy = served.page(self._report, *self._addresses, self.address_for_guest)
        return Reply(200, {"Content-Type": _TYPES[".html"], "Content-Security-Policy": policy}, text.encode())

    def address_for_guest(self, name: str) -> str:
        """The path under which a page from elsewhere may have this one file."""
        return f"/one/{self._key(name)}/{quote(os.fsencode(name))}"

    def _key(self, name: str) -> str:
        return hmac.new(self.token.encode(), os.fsencode(name), hashlib.sha256).hexdigest()

    def _for_guest(self, method: str, rest: str, origin: str | None) -> Reply:
        key, _, quoted = rest.partition("/")
        name = unquote(quoted, errors="surrogateescape")
        if not _equal(key, self._key(name)):
            return _words(403, "This address opens nothing, or no longer: `profrun open` makes new ones each time.")
        shared = {"Vary": "Origin"} | ({"Access-Control-Allow-Origin": origin} if origin == self.guest else {})
        if method == "OPTIONS":
            asked = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Private-Network": "true"}
            return Reply(204, {**shared, **asked})
        reply = self._file(name)
        return Reply(reply.status, {**reply.headers, **shared}, reply.text, reply.file, reply.size)

    def _file(self, name: str) -> Reply:
        """A regular file in the report folder, wherever links lead; others are not there."""
        try:
            path = (self.root / name).resolve(strict=True)
            if not path.is_relative_to(self.root):
                return _NOT_FOUND
            opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
        except (OSError, ValueError, RuntimeError):
            return _NOT_FOUND
        about = os.fstat(opened.fileno())
        if not stat.S_ISREG(about.st_mode):
            opened.close()
            return _NOT_FOUND
        kind = _TYPES.get(path.suffix.lower(), "application/octet-stream")
        headers = {"Content-Type": kind, "Content-Security-Policy": _SANDBOX}
        return Reply(200, headers, file=opened, size=about.st_size)


def _words(status: int, text: str) -> Reply:
    return Reply(status, {"Content-Type": _TYPES[".txt"], "Content-Security-Policy": _SANDBOX}, f"{text}\n".encode())


_NOT_FOUND = _words(404, "There is no such file in this report.")


def _equal(given: str, secret: str) -> bool:
    """In a time that says nothing of how much is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _is_ours(host: str) -> bool:
    """Whether a Host header names this machine. Its port may be another: that of a tunnel's other end."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name in _OWN_NAMES or _is_loopback(name)


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _origin(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}".lower()


# ---------------------------------------------------------------- the server


class _Handler(BaseHTTPRequestHandler):
    """Passes requests to the site, and replies on."""

    server: Server
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        with self.server.at_work():
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = self.server.site.answer(self.command, self.path, headers)
            with reply.file or contextlib.nullcontext():
                self._send(reply)

    do_HEAD = do_OPTIONS = do_GET

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        always = {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Content-Length": str(reply.size if reply.file else len(reply.text)),
        }
        for name, value in {**always, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if reply.file is None:
            self.wfile.write(reply.text)
        elif reply.size:
            self.connection.sendfile(reply.file, count=reply.size)

    def version_string(self) -> str:
        return "profrun"

    def log_message(self, *_: Any) -> None:
        """Says nothing: the token is in every path."""


class Server(ThreadingHTTPServer):
    """Serves the site until nobody has asked for anything for `idle_s`."""

    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int, idle_s: float) -> None:
        self.site, self._idle_s = site, idle_s
        self._lock, self._working, self._last, self._ended = threading.Lock(), 0, time.monotonic(), False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.timeout = min(_LOOK_S, idle_s)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the look into DNS for the machine's name, which may take its time."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with self._lock:
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working, self._last = self._working - 1, time.monotonic()

    def run(self) -> None:
        """Until `end` is called, or it has been idle for long enough. KeyboardInterrupt comes through."""
        while not self._ended and (self._working or time.monotonic() - self._last < self._idle_s):
            self.handle_request()

    def end(self) -> None:
        """Soon; from another thread."""
        self._ended = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that has gone is no error; anything else is told."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


# ---------------------------------------------------------------- for the user


def serve(report: Report, request: Request) -> None:
    """Serves the report until Ctrl-C, or until nobody has asked for long enough. The address goes to stdout.

    Raises UsageError for an address that is not this machine's alone, ReportError for a report without a page,
    PreflightError where the port can't be had."""
    if not (report.folder / "index.html").is_file():
        again = f"profrun report {shlex.quote(str(report.folder))}"
        how = f"put html into report.formats of {report.folder}/plan.yaml, then: {again}"
        raise ReportError(f"{report.folder} has no page to show", "there is no index.html in it", how)
    site = Site(report, request.perfetto, request.speedscope)
    with _server(site, request) as server:
        base = f"http://{_bracketed(server.server_name)}:{server.server_port}"
        for line in _words_to_the_user(report, request, server.server_port):
            print(line, file=sys.stderr, flush=True)
        print(f"{base}/{site.token}/", flush=True)
        if request.browser and (os.environ.get("BROWSER") or not _through_ssh()):
            process.browse(f"{base}/in/{site.entry}")
        with contextlib.suppress(KeyboardInterrupt):
            server.run()
    print("profrun: the report is no longer served", file=sys.stderr)


def _server(site: Site, request: Request) -> Server:
    host = {"localhost": "127.0.0.1"}.get(request.host, request.host)
    if not _is_loopback(host):
        why = "whoever reaches the port could try for what your program printed, and how it is built"
        raise UsageError(f"--host {request.host}: a report is served to its own machine alone", why, _TUNNEL)
    try:
        return Server(site, host, request.port, request.idle_s)
    except OSError as error:
        what = f"port {request.port} of {host} can't be had" if request.port else f"no port of {host} can be had"
        raise PreflightError(what, error.strerror or str(error), "leave --port out: a free one is taken") from error


_TUNNEL = "leave --host out; from another machine: ssh -N -L PORT:127.0.0.1:PORT USER@HOST, with the --port given here"


def _words_to_the_user(report: Report, request: Request, port: int) -> Iterator[str]:
    limit = f"{show_duration(request.idle_s)} without a request"
    yield f"profrun: {report.folder} is served to this machine alone, until Ctrl-C or {limit}"
    uis = " and ".join(urlsplit(address).netloc for address in (request.perfetto, request.speedscope))
    yield f"  its buttons open pages of {uis}: your browser hands them the data, and they send it nowhere"
    if _through_ssh():
        user, host = os.environ.get("USER", "USER"), platform.node() or "HOST"
        yield f"  on the machine that you sit at: ssh -N -L {port}:127.0.0.1:{port} {user}@{host}, and then open"


def _through_ssh() -> bool:
    return bool(os.environ.get("SSH_CONNECTION"))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
