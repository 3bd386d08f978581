"""DOOR: what this machine is and what it allows. Reads facts, finds tools; asks each question once."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator import folder, gpus, process
from orchestrator.model import Armed, Attached, Tool, ToolProbe
from orchestrator.standalone import seize

_CAPABILITIES = {"SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_NICE": 23, "PERFMON": 38}
"""The bit of each in the sets of /proc/PID/status (linux/capability.h)."""
_WITHOUT = {
    "SYS_PTRACE": "on the host: sudo sysctl kernel.yama.ptrace_scope=0",
    "SYS_ADMIN": "on the host, let all users read the GPU's counters: NVreg_RestrictProfilingToAdminUsers=0",
    "SYS_NICE": "raise the priority of its processes on the host: sudo renice",
    "PERFMON": "on the host: sudo sysctl kernel.perf_event_paranoid=1",
}
"""What helps in a container that has users of its own, where a capability is worth nothing outside of it."""
_ANSWER_LIMIT_S = 10.0

CUDA_PLACES = (
    "/usr/local/cuda/bin",
    "/opt/nvidia/nsight-systems/*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/opt/cuda/bin",
)
"""Where tools lie that are on nobody's PATH, as seen on clusters and from cron."""


@dataclass(frozen=True)
class Permission:
    """Whether something is allowed here, proven by trying; if not, why, and the one step that mends it."""

    allowed: bool
    why: str
    fix: str | None = None


class Machine:
    """This machine. `tools` maps a tool's name to the path that the plan gives for it."""

    def __init__(self, tools: Mapping[str, str] | None = None, root: Path | None = None) -> None:
        self._given = dict(tools or {})
        self._root = root or Path(os.environ.get("PROFRUN_SYSROOT", "/"))
        self._tools: dict[ToolProbe, Tool] = {}
        self.target_env: Mapping[str, str] = os.environ
        """The environment that the target will start with, as far as it is known: it decides which GPUs it sees."""
        self.target_env_unknown: str | None = None
        """Why that is not what the target was started with, where it runs already."""
        self.gpu_silence: str | None = None
        """That the GPUs' driver has not answered within the limit, once it has not: it is not asked again."""
        self.target_pids: tuple[int, ...] = ()
        """The processes that are attached to; empty when profrun starts the target."""
        self.attached: tuple[Attached, ...] = ()
        """Those with all that they have started, as found before the run."""
        self.armed: Armed | None = None
        """Where they are of a program that waits to be woken."""
        self.target_cpus: tuple[int, ...] = ()
        """The CPUs that the plan binds the target to; empty when to none."""

    # ------------------------------------------------------------ tools

    def tool(self, probe: ToolProbe) -> Tool:
        """The tool with its version and features; its path is None when it is not here, or can't be started."""
        if probe not in self._tools:
            path = self.find(probe)
            self._tools[probe] = Tool(probe.name, None) if path is None else _probed(probe, path)
        return self._tools[probe]

    def given(self, name: str) -> str | None:
        """The path that the plan gives for a tool; None when it gives none."""
        return self._given.get(name)

    def find(self, probe: ToolProbe) -> str | None:
        """Where the tool lies; None when it is not here. Does not start it."""
        given = self._given.get(probe.name)
        if given:
            return given if os.access(given, os.X_OK) else None
        beside_python = str(Path(sys.executable).parent)
        for path in (os.environ.get("PATH", ""), beside_python, os.defpath, *_expand(CUDA_PLACES), *_user_places()):
            found = shutil.which(probe.name, path=path)
            if found:
                return found
        return next((place for place in _expand(probe.places) if os.access(place, os.X_OK)), None)

    # ------------------------------------------------------------ permissions

    @functools.cached_property
    def _ptrace(self) -> Permission:
        return _try_ptrace(self)

    def ptrace(self) -> Permission:
        """Whether we may trace a process that we started, proven on one."""
        return self._ptrace

    def ptrace_beside(self) -> Permission:
        """Whether a process that we started may trace another one, proven on two."""
        return _try_ptrace_beside(self)

    def ptrace_of(self, pids: Iterable[int]) -> Permission:
        """Whether we may trace one of these processes, which run already. None is touched: the kernel asks the same of
        whoever opens a process's memory (proc(5): PTRACE_MODE_ATTACH)."""
        known = tuple(pids)
        if not known or any(map(process.may_trace, known)):
            return Permission(True, "it may be traced")
        return Permission(False, f"process {known[0]} may not be traced{_why_not(self)}", _fix_for_running(self))

    @property
    def is_root(self) -> bool:
        return os.geteuid() == 0

    def is_wsl(self) -> bool:
        """Linux below Windows: its kernel says so."""
        return "microsoft" in (self.read("proc/sys/kernel/osrelease") or "").lower()

    def yama_scope(self) -> int | None:
        """kernel.yama.ptrace_scope; None where the kernel has no Yama."""
        return _int(self.read("proc/sys/kernel/yama/ptrace_scope"))

    def perf_event_paranoid(self) -> int | None:
        return _int(self.read("proc/sys/kernel/perf_event_paranoid"))

    def in_container(self) -> str | None:
        """The kind of container that we are in, by its usual signs; None outside or when unknown."""
        if (self._root / ".dockerenv").exists():
            return "docker"
        if (self._root / "run/.containerenv").exists():
            return "podman"
        if "SINGULARITY_NAME" in os.environ or "APPTAINER_NAME" in os.environ:
            return "apptainer"
        if all((self._root / name).exists() for name in (".lock", "etc/rc")):  # its lock, and its command script
            return "enroot"
        control = self.read("proc/1/cgroup") or ""
        if "kubepods" in control or "KUBERNETES_SERVICE_HOST" in os.environ:
            return "kubernetes"
        return next((kind for kind in ("docker", "lxc") if kind in control), None)

    def has_users_of_its_own(self) -> bool:
        """Whether we are in a namespace of users, as in a container that no root has started: what root may do there,
        it may do to what is in there alone (user_namespaces(7))."""
        users = self.read("proc/self/uid_map")
        return users is not None and users.split() != ["0", "0", "4294967295"]

    def capabilities(self, kind: str = "CapEff") -> int | None:
        """A capability set of this process, as it is effective; CapBnd is what no program here can go beyond."""
        found = re.search(rf"^{kind}:\s*([0-9a-f]+)", self.read("proc/self/status") or "", re.M)
        return int(found[1], 16) if found else None

    def capable(self, *names: str, kind: str = "CapEff") -> bool:
        """Whether this process has one of these capabilities; where that can't be read, whether it is root. Those that
        the kernel asks of the whole machine are none in a namespace of users."""
        if self.has_users_of_its_own():
            names = tuple(name for name in names if name == "SYS_PTRACE")
        own = self.capabilities(kind)
        return self.is_root if own is None and names else any((own or 0) >> _CAPABILITIES[name] & 1 for name in names)

    def grant(self, *names: str) -> str:
        """How the container that we are in is given these capabilities."""
        kind = self.in_container()
        out_of_reach = [name for name in names if name != "SYS_PTRACE" or kind == "enroot"]
        if out_of_reach and self.has_users_of_its_own():
            steps = dict.fromkeys(_WITHOUT[name] for name in out_of_reach)
            return f"no container without root can be given {', '.join(out_of_reach)}; {'; '.join(steps)}"
        if kind == "kubernetes":
            return f"add {', '.join(names)} to securityContext.capabilities.add of the pod's container"
        if kind == "lxc":
            return (
                f"take {', '.join(name.lower() for name in names)} out of lxc.cap.drop in the container's configuration"
            )
        if kind == "apptainer":
            return f"run apptainer as root with --add-caps {','.join(f'CAP_{name}' for name in names)}"
        return f"start the container with {' '.join(f'--cap-add {name}' for name in names)}"

    # ------------------------------------------------------------ facts

    def read(self, name: str) -> str | None:
        """A small file below the root (given without the leading slash); None when it can't be read."""
        try:
            return (self._root / name).read_text(errors="replace").strip()
        except OSError:
            return None

    def path(self, name: str) -> Path:
        """A file below the root (given without the leading slash), for `model.Write`."""
        return self._root / name

    @functools.cached_property
    def gpu_look(self) -> gpus.Look:
        """The driver's first answer, for what does not change: which GPUs there are."""
        return gpus.look(self)

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """NVIDIA GPUs as the driver lists them: index, uuid, name, pci, memory_mib, driver, compute_capability."""
        return [
            {
                **{name: getattr(gpu, name) for name in ("index", "uuid", "name", "pci")},
                "memory_mib": None if gpu.memory_total_bytes is None else gpu.memory_total_bytes >> 20,
                "driver": self.gpu_look.driver,
                "compute_capability": gpu.compute_capability,
            }
            for gpu in self.gpu_look.gpus
        ]

    def facts(self) -> dict[str, Any]:
        """What the report says of this machine. An unknown fact is None."""
        return {
            "hostname": platform.node() or None,
            "os": self._os_name(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "cpu": self._cpu(),
            "memory_bytes": self._memory_bytes(),
            "gpus": self.gpus,
            "container": self.in_container(),
            "user_is_root": self.is_root,
            "yama_ptrace_scope": self.yama_scope(),
            "perf_event_paranoid": self.perf_event_paranoid(),
            "load_average": _load_average(),
            "profrun_python": platform.python_version(),
        }

    def _os_name(self) -> str | None:
        found = re.search(r'^PRETTY_NAME="?([^"\n]+)', self.read("etc/os-release") or "", re.M)
        return found[1] if found else None

    def _cpu(self) -> dict[str, Any]:
        info = self.read("proc/cpuinfo") or ""
        model = re.search(r"^(?:model name|Model|Processor)\s*:\s*(.+)$", info, re.M)
        cores = set(
            zip(
                re.findall(r"^physical id\s*:\s*(\d+)", info, re.M),
                re.findall(r"^core id\s*:\s*(\d+)", info, re.M),
                strict=False,
            )
        )
        return {
            "model": model[1].strip() if model else None,
            "logical": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)),
            "physical": len(cores) or None,
            "governor": self.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "smt": self.read("sys/devices/system/cpu/smt/control"),
        }

    def _memory_bytes(self) -> int | None:
        found = re.search(r"^MemTotal:\s*(\d+) kB", self.read("proc/meminfo") or "", re.M)
        return int(found[1]) * 1024 if found else None


def _load_average() -> list[float] | None:
    try:
        return [round(x, 2) for x in os.getloadavg()]
    except OSError:
        return None


def _int(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def _user_places() -> list[str]:
    home = os.environ.get("HOME")
    return [f"{home}/.local/bin", f"{home}/.cargo/bin"] if home else []


def _expand(patterns: tuple[str, ...]) -> list[str]:
    """Globs as existing paths, the last in order (the newest version) first."""
    found = (sorted(Path("/").glob(pattern.lstrip("/")), reverse=True) for pattern in patterns)
    return [str(path) for paths in found for path in paths]


def write_host(path: str, text: str) -> None:
    """Writes a setting of the machine, an existing file in /sys, /proc or /dev, in one call. Raises OSError.

    Every write to the host goes through here, and through `hold_host`."""
    os.close(hold_host(path, text))


def hold_host(path: str, text: str) -> int:
    """The same for a setting that lasts as long as the file stays open: gives back its descriptor. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        os.write(fd, text.encode())
    except OSError:
        os.close(fd)
        raise
    return fd


# ---------------------------------------------------------------- a tool's version and features, asked once per file


def _probed(probe: ToolProbe, path: str) -> Tool:
    known, key = _cache(), _key(probe, path)
    entry = known.get(key) or _probe(probe, path)
    trouble = entry.pop("trouble", None)
    if key not in known and any(entry.values()):  # one that has said nothing, such as by hanging, is asked again
        _keep({**known, key: entry})
    found = None if trouble and "can't be started" in trouble else path
    return Tool(probe.name, found, entry["version"], frozenset(entry["features"]), trouble)


def _probe(probe: ToolProbe, path: str) -> dict[str, Any]:
    said = process.ask([path, *probe.version_args], timeout_s=_ANSWER_LIMIT_S)
    version = re.search(probe.version_regex, said.stdout + said.stderr)
    features: list[str] = []
    if probe.help_args is not None and said.error is None:
        answer = process.ask([path, *probe.help_args], timeout_s=_ANSWER_LIMIT_S)
        text = answer.stdout + answer.stderr
        features = [word for word, pattern in probe.features if re.search(pattern, text)]
    return {"version": version[1] if version else None, "features": features, "trouble": said.error}


def _key(probe: ToolProbe, path: str) -> str:
    real = os.stat(path)  # noqa: PTH116
    shape = json.dumps(asdict(probe), sort_keys=True)
    return f"{path}|{real.st_size}|{real.st_mtime_ns}|{real.st_ino}|{shape}"


def _cache_file() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ["HOME"] + "/.cache" if os.environ.get("HOME") else None)
    return Path(base) / "profrun" / "tools.json" if base else None


def _cache() -> dict[str, Any]:
    file = _cache_file()
    try:
        known = json.loads(file.read_text()) if file else {}
    except (OSError, ValueError):
        known = {}
    return known if isinstance(known, dict) else {}


def _keep(known: Mapping[str, Any]) -> None:
    file = _cache_file()
    if file:
        with contextlib.suppress(OSError):
            folder.write_atomic(file, json.dumps(known).encode())


# ---------------------------------------------------------------- tracing, tried out


def _try_ptrace(machine: Machine) -> Permission:
    """Seizes a child of our own that stands still; it is killed at once."""
    with process.stopped_child() as pid:
        refused = seize.seize(pid)
    return _permission(machine, "tracing a child", os.strerror(refused) if refused else None)


def _try_ptrace_beside(machine: Machine) -> Permission:
    """Lets one child of ours seize another, which is what the profilers do with the target."""
    with process.stopped_child() as pid:
        answer = process.ask([sys.executable, "-I", "-S", seize.__file__, str(pid)])
    why = answer.error or (os.strerror(answer.exit.status) if answer.exit and answer.exit.status else None)
    return _permission(machine, "tracing a process beside it, as the profilers do,", why)


def _why_not(machine: Machine) -> str:
    """As the end of a sentence (Documentation/admin-guide/LSM/Yama.rst)."""
    scope = machine.yama_scope() or 0
    whose = {0: "", 1: ": a program is traced by nobody but what has started it", 2: ": only root may trace"}
    said = whose.get(scope, ": nobody may trace")
    return f", as kernel.yama.ptrace_scope is {scope}{said}" if said else ""


def _fix_for_running(machine: Machine) -> str:
    if machine.yama_scope() in (1, 2) and not (machine.is_root or machine.in_container()):
        started = "let profrun start the program: profrun PLAN -- COMMAND"
        return f"sudo sysctl kernel.yama.ptrace_scope=0, or run profrun as root, or {started}"
    return _ptrace_fix(machine)


def _permission(machine: Machine, what: str, refusal: str | None) -> Permission:
    if refusal is None:
        return Permission(True, f"{what} worked")
    return Permission(False, f"{what} was refused: {refusal}", _ptrace_fix(machine))


def _ptrace_fix(machine: Machine) -> str:
    if machine.yama_scope() == 3:
        return "kernel.yama.ptrace_scope is 3, which lasts until the next boot: set it to 1 in /etc/sysctl.d and reboot"
    if machine.in_container():
        return machine.grant("SYS_PTRACE")
    if machine.yama_scope() == 2 and not machine.is_root:
        return "sudo sysctl kernel.yama.ptrace_scope=1"
    return (
        "run profrun outside the sandbox that filters ptrace (seccomp)"
        if machine.is_root
        else "run as the target's user or as root"
    )
