"""GPUs that are played: a library and an nvidia-smi (gpus.c) over one file of settings, and a log of what was asked."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import SkipTest

SOURCE = Path(__file__).with_suffix(".c")

MACHINE = {
    "count": 2, "driver": "570.124.06", "options": "-lgc -rgc -lmc -rmc -ac -rac",  # what this nvidia-smi offers
    "no_driver": 0, "smi_hang": 0, "nvml_hang": 0,  # a hanging one ignores SIGTERM
    "deny": 0, "as_root": 1,  # who may change settings: everyone; with as_root=0 only root, with deny=1 nobody
    "na_text": "[N/A]", "unknown_fields": "",  # how an unknown value is shown; fields of --query-gpu that are too new
}  # fmt: skip
"""The settings of the machine."""

GPU = {
    "name": "NVIDIA Example", "compute_cap": "9.0", "lost": 0, "mig": 0, "display": 0, "na": "",  # fields not told
    "pm": 0, "lgc": 0, "lmc": 0, "ac_gr": 0, "ac_mem": 0,  # what can be changed; 0: not locked, applications' default
    "sm_max": 1980, "sm_min": 345, "sm_idle": 345, "mem_max": 2619, "mem_idle": 1593,
    "default_gr": 1980, "default_mem": 2619,
    "lgc_way": "", "lmc_way": "", "ac_way": "", "pm_way": "",  # "", clamp, refuse, ignore, hang, unsupported
    "clamp_mhz": 1500, "lock_at_idle": 0,  # an idle GPU mostly runs at its lowest clock, whatever is locked
    "util": 0, "sm_sequence": "", "reasons": 0,  # under load: SM clocks one after the other, 50 ms each; bits beside 2
    "mem_used": 4, "mem_total": 81559, "temperature": 35, "slowdown": 90,
    "processes": "",  # KIND:PID:MIB:NAME, separated by blanks; KIND is C or G
}  # fmt: skip
"""The settings of a GPU; beside these: uuid and pci."""


def built(source: Path = SOURCE) -> Path:
    """The folder with the library and the program, compiled once for each version of the source. Raises SkipTest."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise SkipTest("needs a C compiler for the GPUs that are played")
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    ready = Path(tempfile.gettempdir()) / f"profrun-fakes-{os.getuid()}-{version}"
    if not ready.is_dir():
        making = Path(tempfile.mkdtemp(dir=ready.parent, prefix=ready.name))
        for words in (("-shared", "-fPIC", "-o", "libnvidia-ml.so.1"), ("-DSMI", "-o", "nvidia-smi")):
            subprocess.run([compiler, "-O1", "-w", *words, source], cwd=making, check=True)
        try:
            making.chmod(0o755)
            making.rename(ready)
        except OSError:  # another test run was faster
            shutil.rmtree(making)
    return ready


class FakeGpus:
    """A machine's GPUs, in a folder of their own. `nvml`, `smi`: whether there is such a way to them."""

    def __init__(
        self, folder: Path, count: int = 2, *, nvml: bool = True, smi: bool = True, **settings: object
    ) -> None:
        self.folder = folder / "gpus"
        self._bin = self.folder / "bin"
        self._bin.mkdir(parents=True)
        made = built()
        if smi:
            (self._bin / "nvidia-smi").symlink_to(made / "nvidia-smi")
        if nvml:
            (self._bin / "libnvidia-ml.so.1").symlink_to(made / "libnvidia-ml.so.1")
        else:
            (self._bin / "libnvidia-ml.so.1").write_text("no library: NVML is not to be found, wherever this runs")
        lines = {**MACHINE, "count": count, **{k: v for k, v in settings.items() if k in MACHINE}}
        for n in range(count):
            own = {"uuid": self.uuid(n), "pci": f"00000000:{n + 1:02X}:00.0", **GPU}
            own |= {k: v for k, v in settings.items() if k not in MACHINE}
            lines |= {f"{n}.{key}": value for key, value in own.items()}
        self._write(lines)

    @staticmethod
    def uuid(n: int) -> str:
        return f"GPU-0000000{n}-aaaa-bbbb-cccc-dddddddddddd"

    @staticmethod
    def mig_uuid(n: int, part: int) -> str:
        return f"MIG-{part}000000{n}-aaaa-bbbb-cccc-dddddddddddd"

    @property
    def file(self) -> Path:
        return self.folder / "state"

    @property
    def env(self) -> dict[str, str]:
        """What a process needs to see these GPUs and no others."""
        return {
            "FAKE_GPUS": str(self.file),
            "PATH": f"{self._bin}:{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": str(self._bin),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def set(self, gpu: int | None = None, **settings: object) -> None:
        """Changes settings of a GPU, or of the machine."""
        with self._locked():
            before = "" if gpu is None else f"{gpu}."
            self._write({**self._read(), **{before + key: value for key, value in settings.items()}})

    def get(self, gpu: int | None, key: str) -> str:
        return self._read()[key if gpu is None else f"{gpu}.{key}"]

    def changeable(self) -> dict[str, str]:
        """All that a run may change, by its key."""
        return {
            k: v for k, v in self._read().items() if k.rpartition(".")[2] in ("pm", "lgc", "lmc", "ac_gr", "ac_mem")
        }

    def calls(self, *options: str) -> list[str]:
        """What nvidia-smi was asked, in order; with `options`, only where one of them stands."""
        log = Path(f"{self.file}.calls")
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if not options or set(line.split()) & set(options)]

    def changes(self) -> list[str]:
        """The calls that change something."""
        return self.calls("-pm", "-lgc", "-lmc", "-ac", "-rgc", "-rmc", "-rac")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with Path(f"{self.file}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, str]:
        pairs = (line.partition("=") for line in self.file.read_text().splitlines())
        return {key: value for key, _, value in pairs}

    def _write(self, lines: dict[str, object] | dict[str, str]) -> None:
        new = self.file.with_suffix(f".{os.getpid()}.new")
        new.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        new.rename(self.file)
