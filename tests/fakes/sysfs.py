"""A fake machine's processors: /sys/devices/system/cpu as each cpufreq driver makes it, and the rules of the kernel
behind it.

Layout and rules: the kernel's Documentation/admin-guide/pm, files cpufreq, intel_pstate, amd-pstate, cpuidle."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

_PLACE = "sys/devices/system/cpu"
_CLASSIC = "conservative ondemand userspace powersave performance schedutil"
_TWO = "performance powersave"
_PREFERENCES = "default performance balance_performance balance_power power"


@dataclass(frozen=True)
class Form:
    """What one driver shows. Frequencies in kHz. `extra`: files of the whole machine; `each`: more files of a policy;
    `every`: more files of a CPU."""

    driver: str
    governor: str
    governors: str
    lowest: int = 800_000
    base: int = 2_400_000
    highest: int = 4_800_000
    share: int = 1
    """How many CPUs have one policy in common."""
    extra: Mapping[str, str] = field(default_factory=dict)
    each: Mapping[str, str] = field(default_factory=dict)
    every: Mapping[str, str] = field(default_factory=dict)
    states: tuple[tuple[str, int], ...] = (("POLL", 0), ("C1", 1), ("C1E", 10), ("C6", 133))
    """Idle states: name, exit latency in us."""


def _intel(status: str, **more: str) -> dict[str, str]:
    return {f"intel_pstate/{name}": text for name, text in {"status": status, "no_turbo": "0", "max_perf_pct": "100",
            "min_perf_pct": "16", "num_pstates": "41", "turbo_pct": "60", **more}.items()}  # fmt: skip


_INTEL = Form(
    "intel_pstate", "powersave", _TWO, extra=_intel("active", hwp_dynamic_boost="0"),
    each={"base_frequency": "2400000", "energy_performance_preference": "balance_performance",
          "energy_performance_available_preferences": _PREFERENCES},
)  # fmt: skip
_AMD = Form(
    "amd-pstate", "schedutil", _CLASSIC, lowest=400_000, base=3_300_000, highest=4_680_000,
    extra={"amd_pstate/status": "passive", "amd_pstate/prefcore": "enabled", "cpufreq/boost": "1"},
    each={"boost": "1", "amd_pstate_max_freq": "4680000", "amd_pstate_lowest_nonlinear_freq": "1100000",
          "amd_pstate_highest_perf": "166"},
    every={"acpi_cppc/nominal_freq": "3300", "acpi_cppc/lowest_freq": "400"},
    states=(("POLL", 0), ("C1", 1), ("C2", 18), ("C3", 350)),
)  # fmt: skip
_WORLD: Mapping[str, Form | None] = {
    "intel_pstate": _INTEL,
    "intel_cpufreq": replace(
        _INTEL, driver="intel_cpufreq", governor="schedutil", governors=_CLASSIC, extra=_intel("passive"),
        each={"base_frequency": "2400000"},
    ),
    "amd-pstate-epp": replace(
        _AMD, driver="amd-pstate-epp", governor="powersave", governors=_TWO,
        extra={**_AMD.extra, "amd_pstate/status": "active"},
        each={**_AMD.each, "energy_performance_preference": "balance_performance",
              "energy_performance_available_preferences": _PREFERENCES},
    ),
    "amd-pstate": _AMD,
    "amd-pstate-guided": replace(_AMD, extra={**_AMD.extra, "amd_pstate/status": "guided"}),
    "acpi-cpufreq": Form(
        "acpi-cpufreq", "schedutil", _CLASSIC, lowest=2_200_000, base=3_500_000, highest=4_350_000, share=2,
        extra={"cpufreq/boost": "1"}, each={"scaling_available_frequencies": "3500000 2800000 2200000"},
        states=(("POLL", 0), ("C1", 1), ("C2", 400)),
    ),
    "none": None,
}  # fmt: skip
FORMS = (*_WORLD, "readonly")
"""`readonly` is `intel_pstate` whose files nobody but root may write; `bound` makes it a read-only mount."""


def make(root: Path, form: str, cpus: int = 4) -> Path:
    """Builds it below `root` (a PROFRUN_SYSROOT) and gives back the folder that stands for /sys/devices/system/cpu.

    Two threads a core: CPU n and n + cpus/2. `none` is a virtual machine."""
    here = _WORLD["intel_pstate" if form == "readonly" else form]
    place = root / _PLACE
    files = _everywhere(cpus, here)
    for number in range(cpus):
        files |= {f"cpu{number}/{name}": text for name, text in _cpu(number, cpus, here).items()}
    if here:
        files |= here.extra
        for first in range(0, cpus, here.share):
            files |= {f"cpufreq/policy{first}/{name}": text for name, text in _policy(first, here).items()}
    for name, text in files.items():
        _put(place / name, text)
    for number in range(cpus if here else 0):
        (place / f"cpu{number}/cpufreq").symlink_to(f"../cpufreq/policy{number - number % (here.share if here else 1)}")
    _put(root / "proc/cpuinfo", "".join(_cpuinfo(n, here is None) for n in range(cpus)))
    if form == "readonly":
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(0o444)
    return place


def _everywhere(cpus: int, form: Form | None) -> dict[str, str]:
    every = f"0-{cpus - 1}"
    return {
        "online": every, "present": every, "possible": every, "offline": "", "isolated": "",
        "smt/control": "on" if form else "notsupported", "smt/active": "1" if form else "0",
        "cpuidle/current_driver": "intel_idle" if form else "haltpoll", "cpuidle/current_governor": "menu",
    }  # fmt: skip


def _cpu(number: int, cpus: int, form: Form | None) -> dict[str, str]:
    core = number % (cpus // 2)
    states = form.states if form else (("POLL", 0), ("haltpoll idle", 1))
    idle = {
        f"cpuidle/state{n}/{key}": text
        for n, (name, latency_us) in enumerate(states)
        for key, text in (("name", name), ("latency", str(latency_us)), ("disable", "0"))
    }
    siblings = f"{core},{core + cpus // 2}" if form else str(number)
    topology = {"topology/thread_siblings_list": siblings, "topology/core_id": str(core)}
    return {**({"online": "1"} if number else {}), **topology, **idle, **(form.every if form else {})}


def _policy(first: int, form: Form) -> dict[str, str]:
    cpus = " ".join(map(str, range(first, first + form.share)))
    return {
        "affected_cpus": cpus, "related_cpus": cpus,
        "cpuinfo_min_freq": str(form.lowest), "cpuinfo_max_freq": str(form.highest), "cpuinfo_transition_latency": "0",
        "scaling_driver": form.driver, "scaling_governor": form.governor,
        "scaling_available_governors": form.governors,
        "scaling_min_freq": str(form.lowest), "scaling_max_freq": str(form.highest), "scaling_cur_freq": "1200000",
        "scaling_setspeed": "<unsupported>", **form.each,
    }  # fmt: skip


def _cpuinfo(number: int, virtual: bool) -> str:
    return f"processor\t: {number}\nflags\t\t: fpu tsc msr{' hypervisor' if virtual else ''}\n\n"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def bound(root: Path, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` where the processors of the fake machine below `root` are this machine's: in a
    mount namespace of its own, which needs no root where users may make one. `readonly` is mounted read-only."""
    place = shlex.quote(str(root / _PLACE))
    mounts = [f"mount --bind {place} /{_PLACE}"]
    if not (root / _PLACE / "smt/control").stat().st_mode & 0o200:
        mounts.append(f"mount -o remount,bind,ro /{_PLACE}")
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    return [*unshare, "sh", "-c", f'{" && ".join(mounts)} && exec "$@"', "sh", *argv]


# ---------------------------------------------------------------- what the kernel does with what is written


class Kernel:
    """Takes what is written to the files of `make` as a kernel takes it: clamps, refuses, moves what hangs together.

    `strict`: one from before 5.4, which refuses a minimum above the maximum. `resets_turbo`: one whose intel_pstate
    turns turbo on again with each new governor."""

    def __init__(self, place: Path, *, strict: bool = False, resets_turbo: bool = False) -> None:
        self.place, self._strict, self._resets_turbo = place, strict, resets_turbo
        self._asked = {
            (policy, end): int(self._get(policy / f"scaling_{end}_freq"))
            for policy in self.policies()
            for end in ("min", "max")
        }
        self._preference = {policy: self._get(policy / "energy_performance_preference") for policy in self.policies()}
        self._highest = {policy: int(self._get(policy / "cpuinfo_max_freq")) for policy in self.policies()}
        self.turbo_locked = False
        """The firmware has turned turbo off for good."""
        self.log: list[str] = []

    def policies(self) -> list[Path]:
        return sorted(self.place.glob("cpufreq/policy*"))

    def write(self, path: str | Path, text: str) -> None:
        """Raises OSError as write(2) would."""
        path, text = Path(path), text.strip()
        self.log.append(f"{path.relative_to(self.place)} {text}")
        if not path.exists():
            raise _error(errno.ENOENT)
        rule = {
            "scaling_governor": self._governor, "scaling_min_freq": self._limit, "scaling_max_freq": self._limit,
            "energy_performance_preference": self._prefer, "no_turbo": self._no_turbo, "boost": self._boost,
            "control": self._smt, "disable": self._disable,
        }[path.name]  # fmt: skip
        rule(path, text)

    def _governor(self, path: Path, text: str) -> None:
        policy = path.parent
        if text not in self._get(policy / "scaling_available_governors").split():
            raise _error(errno.EINVAL)
        before = self._get(path)
        self._set(path, text)
        preference = policy / "energy_performance_preference"
        if preference.exists() and text == "performance":
            self._set(preference, "performance")
        elif preference.exists() and before == "performance":
            self._set(preference, self._preference[policy])
        if self._resets_turbo and (self.place / "intel_pstate").exists():
            self._no_turbo(self.place / "intel_pstate/no_turbo", "0")

    def _limit(self, path: Path, text: str) -> None:
        policy, end = path.parent, path.name.split("_")[1]
        asked = {**{e: int(self._get(policy / f"scaling_{e}_freq")) for e in ("min", "max")}, end: int(text)}
        if self._strict and asked["min"] > asked["max"]:
            raise _error(errno.EINVAL)
        self._asked[policy, end] = int(text)
        self._settle(policy)

    def _settle(self, policy: Path) -> None:
        """What was asked for, as far as the limits of this moment allow it."""
        lowest = int(self._get(policy / "cpuinfo_min_freq"))
        highest = self._highest[policy] if self._turbo(policy) else self._base(policy)
        most = min(max(self._asked[policy, "max"], lowest), highest)
        self._set(policy / "scaling_max_freq", str(most))
        self._set(policy / "scaling_min_freq", str(min(max(self._asked[policy, "min"], lowest), most)))

    def _turbo(self, policy: Path) -> bool:
        held = self._get(self.place / "intel_pstate/no_turbo") == "1" or self._get(self.place / "cpufreq/boost") == "0"
        return not held and self._get(policy / "boost") != "0"

    def _base(self, policy: Path) -> int:
        cppc = self._get(self.place / f"cpu{policy.name[6:]}/acpi_cppc/nominal_freq")
        table = self._get(policy / "scaling_available_frequencies").split()
        return int(self._get(policy / "base_frequency") or 0) or int(cppc or 0) * 1000 or max(map(int, table))

    def _prefer(self, path: Path, text: str) -> None:
        if text not in self._get(path.parent / "energy_performance_available_preferences").split():
            raise _error(errno.EINVAL)
        if self._get(path.parent / "scaling_governor") == "performance" and text != "performance":
            raise _error(errno.EBUSY)
        self._preference[path.parent] = text
        self._set(path, text)

    def _no_turbo(self, path: Path, text: str) -> None:
        if self.turbo_locked:
            raise _error(errno.EPERM)
        self._set(path, text)
        for policy in self.policies():
            self._settle(policy)

    def _boost(self, path: Path, text: str) -> None:
        whole = self.place / "cpufreq/boost"
        if path != whole and text == "1" and self._get(whole) == "0":
            raise _error(errno.EINVAL)
        self._set(path, text)
        for policy in self.policies() if path == whole else [path.parent]:
            if (policy / "boost").exists():
                self._set(policy / "boost", text)
            self._settle(policy)

    def _smt(self, path: Path, text: str) -> None:
        """The second threads go, and their policies with them; they come back as they were."""
        if text not in ("on", "off", "forceoff") or self._get(path) in ("notsupported", "forceoff"):
            raise _error(errno.EINVAL if text not in ("on", "off", "forceoff") else errno.ENODEV)
        cpus = len(list(self.place.glob("cpu[0-9]*")))
        for number in range(cpus // 2, cpus):
            shown, hidden = (self.place / f"cpufreq/{dot}policy{number}" for dot in ("", "."))
            here, there = (hidden, shown) if text == "on" else (shown, hidden)
            self._set(self.place / f"cpu{number}/online", "1" if text == "on" else "0")
            if here.exists():
                here.rename(there)
        self._set(path, text)
        self._set(self.place / "smt/active", "1" if text == "on" else "0")
        self._set(self.place / "online", f"0-{cpus - 1 if text == 'on' else cpus // 2 - 1}")

    def _disable(self, path: Path, text: str) -> None:
        self._set(path, "1" if int(text) else "0")

    @staticmethod
    def _get(path: Path) -> str:
        return path.read_text().strip() if path.exists() else ""

    @staticmethod
    def _set(path: Path, text: str) -> None:
        path.write_text(text + "\n")


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def snapshot(place: Path) -> dict[str, str]:
    """Every file with its text, to compare a machine before with itself after. The newline at the end is the kernel's
    own: it is not written with a setting."""
    return {
        str(path.relative_to(place)): path.read_text().strip() for path in sorted(place.rglob("*")) if path.is_file()
    }
