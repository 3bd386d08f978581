"""Faults of the tools: each that profrun starts or asks, missing, broken, hanging, dying, lying, in the way."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from cli import Result, command, script
from light_torch import LIGHT
from matrix.words import Fault, Place
from waiting import LIMIT_S

Target = tuple[str, ...]
Statuses = str | tuple[str, ...]
SHELL: Target = ("sh", "-c", "sleep 0.2; sleep 0.4")
"""Long enough for a fake to do its worst while it runs, and with calls for strace to see."""
PYTHON: Target = (sys.executable, "-c", "import time\nend = time.time() + 0.8\nwhile time.time() < end: sum(range(99))")
TIMING, MONITOR = "{use: timing, warmup: 0, repeats: 1}", "{use: monitor, interval: 100ms}"
ITEMS = {
    "strace": "{use: strace, flush: 1s}",
    "perf": "{use: perf, flush: 1s}",
    "py-spy": "{use: py-spy, flush: 1s}",
    "nsys": "{use: nsys, flush: 20s}",
    "ncu": "{use: ncu, flush: 20s}",
}
TRACE, RECORD = "{use: strace, mode: trace, flush: 1s}", "{use: perf, mode: record, flush: 1s}"
USABLE = ("ok", "degraded", "empty")

FAKE = """#!/bin/sh
# {name}, but for what comes below: it answers questions as the real one does
real={real} out= pid= before=
for word do
  case $before in -o | --output | --export) out=$word ;; -p | --pid) pid=${{word%%,*}} ;; esac
  case $word in --output=*) out=${{word#*=}} ;; esac
  before=$word
done
case $1 in export) exec "$real" "$@" ;; esac
case $out in '' | -) exec "$real" "$@" ;; esac
{does}
"""
"""A tool that misbehaves where it is started to record, into `out` and, attached, what `pid` does."""

Prepare = Callable[[Place], object]


def real(tool: str) -> str:
    """The real tool's path, as profrun finds it; its bare name where it is missing, and with it the row."""
    return shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent)) or tool


def fake(place: Place, tool: str, does: str) -> Path:
    return script(place.bin / tool, FAKE.format(name=tool, real=shlex.quote(real(tool)), does=does))


def instead(place: Place, tool: str, text: str) -> Path:
    """Another program under the tool's name, which answers no question as the tool would."""
    return script(place.bin / tool, text.replace("REAL", shlex.quote(real(tool))))


def plan(place: Place, *items: str, formats: str = "[]", more: str = "") -> Path:
    """These collectors, each in a pass of its own."""
    path = place.folder / "plan.yaml"
    lines = ["version: 1", "name: fault", f"report: {{formats: {formats}}}", *([more] if more else []), "collectors:"]
    path.write_text("\n".join([*lines, *(f"  - {item}" for item in items)]) + "\n")
    return path


def used(item: str) -> str:
    """The collector's name."""
    return item.removeprefix("{use: ").partition(",")[0].rstrip("}")


def faulty(
    name: str,
    item: str,
    prepare: Prepare,
    says: str,
    status: Statuses = "tool_failed",
    *,
    target: Target = SHELL,
    healthy: str = MONITOR,
    needs: Iterable[str] = (),
    formats: str = "[]",
    more: str = "",
    env: Mapping[str, str] | None = None,
) -> Fault:
    """A bare run, one collector at which something is wrong, and one that has nothing to do with it."""

    def inject(place: Place) -> Result:
        prepare(place)
        path = plan(place, TIMING, item, healthy, formats=formats, more=more.replace("PLACE", str(place.folder)))
        return place.profrun(path, "--", *target, **dict(env or {}))

    code = 0 if status in USABLE or not isinstance(status, str) else 4
    return Fault(name, inject, code, says, {"timing": "ok", used(item): status, used(healthy): "ok"}, tuple(needs))


def broken(
    tool: str,
    what: str,
    does: str,
    says: str,
    status: Statuses = "tool_failed",
    *,
    item: str | None = None,
    prepare: Callable[..., object] = fake,
    target: Target | None = None,
    healthy: str = MONITOR,
    formats: str = "[]",
) -> Fault:
    """A fake in the tool's place."""
    placed = partial(prepare, tool=tool, **({"does": does} if prepare is fake else {"text": does}))
    target = target or (PYTHON if tool == "py-spy" else SHELL)
    return faulty(
        f"{tool} {what}", item or ITEMS[tool], placed, says, status, target=target, healthy=healthy, needs=(tool,),
        formats=formats,
    )  # fmt: skip


# ---------------------------------------------------------------- missing, and not what it should be

OTHER_MACHINE = "\x7fELF\x02\x01\x01" + "\0" * 9 + "\x02\0\xff\x7f" + "\0" * 60
UNANSWERED = '#!/bin/sh\ncase $* in -V | --version | -h | *--help) {} ;; esac\nexec REAL "$@"\n'
HIDDEN = ("strace", "perf", "py-spy", "nsys", "ncu")


UNSHARED = ("unshare", "-m", *(() if os.geteuid() == 0 else ("-r",)))


def may_hide() -> bool:
    """Whether we may mount something over the tools: not in every container."""
    return bool(shutil.which("unshare")) and subprocess.run([*UNSHARED, "true"], capture_output=True).returncode == 0


def without_tools(place: Place) -> Result:
    """In a mount namespace in which an empty file lies over each tool."""
    empty = place.folder / "empty"
    empty.touch()
    paths = [real(tool) for tool in HIDDEN if Path(real(tool)).is_absolute()]
    hide = "; ".join(f"mount --bind {empty} {shlex.quote(path)}" for path in paths)
    words = command(plan(place, TIMING, *ITEMS.values(), MONITOR), "--", *SHELL)
    line = [*UNSHARED, "sh", "-c", f'{hide}; exec "$@"', "sh", *words]
    done = subprocess.run(line, cwd=place.folder, env=place.env(), capture_output=True, text=True, timeout=LIMIT_S)
    return Result(done.returncode, done.stdout, done.stderr, place.folder)


def alone(item: str, more: str = "") -> Callable[[Place], Result]:
    return lambda place: place.profrun(plan(place, item, more=more), "--", *SHELL)


def given(text: str | None, name: str = "tool") -> Prepare:
    """What lies where the plan's `tools:` points to."""

    def prepare(place: Place) -> None:
        if text is not None:
            (place.folder / name).write_text(text)

    return prepare


HIDING = (
    Fault(
        "no tool is there", without_tools, 4, "strace was not found",
        {"timing": "ok", "monitor": "ok", **dict.fromkeys(HIDDEN, "skipped")}, ("unshare",),
    ),
)  # fmt: skip
MISSING = (
    Fault("the only tool is missing", alone("{use: strace}", "tools: {strace: /nowhere/strace}"), 3,
          "tools.strace is /nowhere/strace, which is no program", report=False),
    faulty("the plan's strace is not executable", TRACE, given("#!/bin/sh\n"), "which is no program", "skipped",
           more="tools: {strace: PLACE/tool}"),
    faulty("a folder is called strace", TRACE, lambda place: (place.bin / "strace").mkdir(), "profrun: ok", "ok",
           needs=("strace",)),
    broken("nsys", "is for another processor", OTHER_MACHINE, "bin/nsys can't be started: Exec format error", "skipped",
           prepare=instead),
    broken("perf", "needs an interpreter that is not there", "#!/nowhere/sh\n", "bin/perf can't be started", "skipped",
           prepare=instead),
    broken("nsys", "is deleted after the check", '#!/bin/sh\nrm -f "$0"\nexec REAL "$@"\n',
           "the tool around the target could not be started: .*bin/nsys", prepare=instead),
    broken("strace", "hangs when asked for its version", UNANSWERED.format("exec sleep 600"),
           "bin/strace does not tell its version: no answer in 10 s", "ok", item=TRACE, prepare=instead),
    broken("py-spy", "hangs when asked for its version", UNANSWERED.format("trap '' INT TERM; exec sleep 600"),
           "bin/py-spy does not tell what it can: no answer in 10 s", "skipped", prepare=instead),
    broken("strace", "has an unknown version and unknown options", UNANSWERED.format("echo 'strace -- x.y'; exit 1"),
           "profrun: ok", "ok", prepare=instead),
    broken("py-spy", "is too old", UNANSWERED.format("echo py-spy 0.1.0; exit 0"), "upgrade", "skipped",
           prepare=instead),
    broken("perf", "is not the running kernel's", "#!/bin/sh\necho 'E: linux-perf-6.1 is not installed.' >&2; exit 1\n",
           "has found no perf for the running kernel", "skipped", prepare=instead),
)  # fmt: skip

# ---------------------------------------------------------------- at its start, amid, at its end

DEAF = "trap '' INT TERM\n"
STUCK = "exec sleep 600"
LOOPS = "while :; do sleep 0.1; done"
AMID = "sleep 0.3"

AT_START = (
    broken("strace", "crashes at its start", "kill -SEGV $$", "strace: tool_failed .* killed by SIGSEGV"),
    broken("strace", "exits 1 at its start", "echo 'strace: out of luck' >&2; exit 1", "out of luck; .* exit 1",
           item=TRACE, formats="[html, markdown]"),
    broken("strace", "never attaches", STUCK, "had not attached after 10 s", item=TRACE),
    broken("strace", "around the target never starts it", DEAF + LOOPS,
           "had not started the target after .* s: it was stopped", target=("sleep", "0.3")),
    broken("py-spy", "crashes at its start", "kill -SEGV $$", "py-spy: tool_failed .* killed by SIGSEGV"),
    broken("py-spy", "never attaches and can't be asked to end", DEAF + STUCK, "had not attached.*killed after 10 s"),
    broken("nsys", "crashes at its start", "kill -SEGV $$", "nsys: tool_failed .* killed by SIGSEGV"),
    broken("nsys", "hangs at its start and can't be asked to end", DEAF + STUCK, "the target was never seen",
           item="{use: nsys, flush: 1s}", target=("sleep", "0.3")),
    broken("ncu", "exits 1 without starting the target", "exit 1", "it said nothing; .* exit 1", formats="[html]"),
)  # fmt: skip

WHILE_IT_RUNS = (
    broken("strace", "is killed while the target runs", f'( {AMID}; kill -9 $$ ) & exec "$real" "$@"',
           "killed by SIGKILL while the target ran", "degraded", item=TRACE),
    broken("strace", "around the target is killed while it runs",
           f"( {AMID}; kill -9 $(awk '/TracerPid/ {{print $2}}' /proc/$$/status) ) & exec \"$real\" \"$@\"",
           "strace: tool_failed .* killed by SIG"),
    broken("py-spy", "is killed while the target runs", f'( {AMID}; kill -9 $$ ) & exec "$real" "$@"',
           "killed by SIGKILL while the target ran; it left no data"),
    broken("nsys", "is killed while the target runs", f'( {AMID}; {AMID}; kill -9 $$ ) & exec "$real" "$@"',
           "nsys: tool_failed .*killed by SIGKILL", target=("sh", "-c", "sleep 0.5; sleep 1")),
    broken("ncu", "crashes while the target runs", f'( {AMID}; {AMID}; kill -SEGV $$ ) & exec "$real" "$@"',
           "ncu: tool_failed .*killed by SIGSEGV", target=("sh", "-c", "sleep 0.5; sleep 1")),
    broken("py-spy", "leaves the target stopped", 'kill -STOP "$pid"', "left the target .* stopped; it was continued"),
    broken("strace", "leaves the target stopped", f'"$real" "$@" & {AMID}; kill -9 $!; kill -STOP "$pid"',
           "left the target .* stopped; it was continued", ("ok", "degraded"), item=TRACE),
    broken("py-spy", "kills the target", f'{AMID}; kill -9 "$pid"', "the target was killed by SIGKILL"),
    broken("nsys", "kills the target", f'while [ "$2" != -c ]; do shift; done; "$@" & {AMID}; kill -9 $!; wait',
           "nsys"),
    broken("strace", "may not write a byte (ulimit -f)", 'ulimit -f 0; exec "$real" "$@"', "killed by SIGXFSZ",
           item=TRACE),
)  # fmt: skip

AT_END = (
    broken("strace", "can't let go of the target", f'setsid "$real" "$@" &\n{DEAF}{STUCK}', "was killed", "degraded",
           item=TRACE),
    broken("strace", "hangs and leaves nothing", f'echo "strace: Process $pid attached" >&2\n{DEAF}{STUCK}',
           "could not let go of the target", item=TRACE),
    broken("perf", "does not end when it is asked to", f"echo 'Events enabled' >&2\n{DEAF}{STUCK}", "killed after 1 s"),
    broken("py-spy", "does not end when it is asked to", f'{DEAF}"$real" "$@"\n{STUCK}', "was killed", "degraded"),
    broken("nsys", "does not end after the target", f'{DEAF}"$real" "$@"\n{STUCK}', "after the target: it was stopped",
           USABLE, item="{use: nsys, flush: 5s}"),
    broken("ncu", "does not end after the target", f'"$real" "$@"\n{DEAF}{STUCK}', "after the target: it was stopped",
           USABLE, item="{use: ncu, flush: 2s}"),
    broken("nsys", "crashes after the target", '"$real" "$@"; rm -f "$out".*; kill -ABRT $$', "SIGABRT"),
    broken("nsys", "exits 0 and leaves nothing", '"$real" "$@" >/dev/null; rm -f "$out".*', "left no report.nsys-rep"),
    broken("py-spy", "exits 1 with a good file", '"$real" "$@"; exit 1', "profrun: ok", "ok"),
)  # fmt: skip

# ---------------------------------------------------------------- what it writes and says

GARBAGE = "head -c 20000 /bin/sh"
FLOOD = "head -c 1000000000 /dev/zero >&2"

WRITES = (
    broken("strace", "writes garbage", f'{GARBAGE} >"$out"', "is no strace log", "unreadable", item=TRACE),
    broken("py-spy", "writes garbage", f'{GARBAGE} >"$out"', "holds no stacks", "unreadable", formats="[html]"),
    broken("nsys", "writes garbage", f'"$real" "$@"; rm -f "$out".*; {GARBAGE} >"$out.nsys-rep"',
           "left no report.sqlite"),
    broken("ncu", "writes garbage", f'"$real" "$@"; {GARBAGE} >"$out.ncu-rep"', "is no report of ncu", "unreadable"),
    broken("strace", "writes an empty file", '"$real" "$@"; : >"$out"', "left no trace.log", item=TRACE),
    broken("perf", "cuts its data", '"$real" "$@"; truncate -s 300 "$out"', "left no script.txt", item=RECORD),
    broken("strace", "writes elsewhere", '"$real" -o "$TMPDIR/elsewhere" -f -p "$pid"', "left no trace.log",
           item=TRACE),
    broken("perf", "writes where nobody can", '"$real" stat -o /nowhere/counters -p "$pid"',
           "No such file or directory; .*exit 255"),
    broken("nsys", "leaves only what its importer can't read", '"$real" "$@"', "Qdstrm file is corrupted",
           prepare=lambda place, tool, text: (fake(place, tool, text), importer(place))),
    broken("strace", "writes more than its cap", 'exec "$real" "$@"', "size or time limit", "degraded",
           item="{use: strace, mode: trace, size_cap: 1kB}"),
    broken("py-spy", "prints 1 GB", f'{FLOOD}; exec "$real" "$@"', "profrun: ok", "ok"),
    broken("perf", "prints what is no UTF-8", r"printf 'Error:\n\377\376 b\303\244d \200 \033[31mred\n' >&2; exit 1",
           r"perf: .* bäd . \\x1b\[31mred"),
)  # fmt: skip

REFUSALS = (
    broken("py-spy", "says Permission Denied", "echo 'Error: Permission Denied: Try running again' >&2; exit 1",
           "py-spy: blocked .*(--cap-add SYS_PTRACE|as root)", "blocked"),
    broken("strace", "may not attach",
           'echo "strace: attach: ptrace(PTRACE_SEIZE, $pid): Operation not permitted" >&2; exit 1',
           "strace: blocked .*another tool traces it already", "blocked", item=TRACE),
    broken("ncu", "may not use the counters",
           'while [ "$2" != -c ]; do shift; done; "$@"; echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have '
           'permission to access NVIDIA GPU Performance Counters"; exit 1',
           "ncu: blocked .*ERR_NVGPUCTRPERM.*NVreg_RestrictProfilingToAdminUsers=0", "blocked"),
    broken("nsys", "has a session that is busy", "echo 'The session name is already in use.' >&2; exit 1",
           "session name is already in use"),
)  # fmt: skip


def importer(place: Place) -> Path:
    """Where profrun looks first for the program that turns a .qdstrm into a report."""
    home = place.folder / "host-linux-x64"
    home.mkdir()
    return script(home / "QdstrmImporter", "#!/bin/sh\necho 'Qdstrm file is corrupted' >&2\nexit 1\n")


# ---------------------------------------------------------------- profrun's own sampler, and what it asks

SAMPLER = "for pid in $(pgrep -P $PPID -f [o]rchestrator/sampler); do {}; done; sleep 0.5"
SAMPLES = 'for file in "$TMPDIR"/profrun-*/p02.1/p02-monitor/samples.jsonl; do [ -e "$file" ] && {}; done; sleep 0.4'
OWN = "{use: monitor, interval: 50ms, flush: 1s}"


def sampler(what: str, line: str, says: str, status: Statuses, item: str = OWN) -> Fault:
    """The target does something to the sampler that watches it."""
    target = ("sh", "-c", f"sleep 0.3; {line}")
    name = f"the sampler {what}"
    return faulty(name, item, lambda place: None, says, status, target=target, healthy=TRACE, needs=("strace", "pgrep"))


def smi(what: str, does: str, says: str, status: Statuses = "ok", more: str = "", item: str = OWN) -> Fault:
    """A driver's tool that misbehaves."""

    def prepare(place: Place) -> None:
        script(place.bin / "nvidia-smi", f"#!/bin/sh\n{does}\n")

    env = {"PROFRUN_GPU_LIMIT_S": "1"}
    name = f"nvidia-smi {what}"
    return faulty(name, item, prepare, says, status, healthy=TRACE, needs=("strace",), env=env, more=more)


CLOCKS = "environment: [{{use: gpu_clocks, graphics: 1000MHz, on_fail: {}}}]"
DRIVER = (
    sampler("is killed", SAMPLER.format("kill -9 $pid"), "killed by SIGKILL while the target ran", "degraded"),
    sampler("stands still", SAMPLER.format("kill -STOP $pid"), "was killed: its data may be cut", "degraded"),
    sampler("loses its file", SAMPLES.format('rm "$file"'), "left no samples.jsonl", "tool_failed"),
    sampler("has its file overwritten", SAMPLES.format(f'{GARBAGE} >"$file"'), "is no file of the monitor",
            "unreadable"),
    sampler("writes more than its cap", "sleep 0.4", "size or time limit", "degraded",
            "{use: monitor, interval: 50ms, size_cap: 1kB}"),
    smi("hangs", DEAF + STUCK, "profrun: ok"),
    smi("hangs, and a GPU is wanted", DEAF + STUCK, "no GPU", "degraded", item="{use: monitor, gpus: true, flush: 1s}"),
    smi("prints garbage", f"{GARBAGE}; exit 0", "profrun: ok"),
    smi("does not fit its driver", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
        "gpu_clocks", more=CLOCKS.format("warn")),
)  # fmt: skip

# ---------------------------------------------------------------- torch.profiler, inside the target

STEPPING = f"""{LIGHT}
import os, torch
def luckless(*_, **__): raise RuntimeError("out of luck")
{{before}}
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    {{each}}
"""


def torch(what: str, says: str, status: Statuses, before: str = "", each: str = "pass") -> Fault:
    """Something happens to torch.profiler, in its own pass only: the others need no torch."""
    code = STEPPING.format(before=before, each=each)
    target = (
        sys.executable,
        "-c",
        f"import sys\nif sys.argv[1] == 'p02': exec({code!r})\nelse: __import__('time').sleep(0.4)",
        "{pass}",
    )
    return faulty(f"torch.profiler {what}", "{use: torch}", lambda place: None, says, status, target=target)


TORCH = (
    faulty("torch.profiler: the target has no torch", "{use: torch}", lambda place: None, "profrun: ok", "empty"),
    torch("can't start", "could not start: RuntimeError: out of luck", "tool_failed",
          before="torch.profiler.profile.start = luckless"),
    torch("can't save", "could not save its trace: RuntimeError: out of luck", "tool_failed",
          before="torch.profiler.profile.export_chrome_trace = luckless"),
    torch("dies with its target", "failed only under torch: killed by SIGKILL", "tool_failed",
          each="step == 10 and os.kill(os.getpid(), 9)"),
)  # fmt: skip

FAULTS: list[Fault] = [
    *(HIDING if may_hide() else ()),
    *MISSING,
    *AT_START,
    *WHILE_IT_RUNS,
    *AT_END,
    *WRITES,
    *REFUSALS,
    *DRIVER,
    *TORCH,
]
