"""Stand-alone (`python -I nvml.py [WINDOW_S]`): what NVML tells of the GPUs, as one JSON object on stdout.

    {"driver": TEXT, "gpus": [{FIELD: VALUE, ...}, ...], "notes": [TEXT, ...]}
    {"error": why nothing can be read}

The fields are those of `orchestrator.gpus.Gpu`, null where a GPU or its driver does not tell; `errors` then has NVML's
name of the error, by field. Utilisation is read every PERIOD_S of the window. A program of its own, because a driver
may never answer; it needs nothing but `nvidia-ml-py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

PERIOD_S = 0.2
"""The driver's own figure is over 1/6 s to 1 s, depending on the GPU (nvml.h, nvmlUtilization_t)."""
_UNKNOWN_PSTATE = 32


class Reader:
    """One GPU, field by field. Raises NVMLError where not even its name is known."""

    def __init__(self, nv: Any, index: int) -> None:
        self._nv, self._handle = nv, nv.nvmlDeviceGetHandleByIndex(index)
        self._names = {getattr(nv, name): name[11:] for name in dir(nv) if name.startswith("NVML_ERROR_")}
        self._errors: dict[str, str] = {}
        self._utilization_pct: list[int] = []
        self._found = {"index": index, "uuid": _text(nv.nvmlDeviceGetUUID(self._handle))}

    def _ask(self, field: str, what: str, *words: Any) -> Any:
        """What nvmlDeviceGet... answers; None, with the error noted, where it does not."""
        try:
            answer = getattr(self._nv, f"nvmlDeviceGet{what}")(self._handle, *words)
        except self._nv.NVMLError as error:
            self._errors[field] = self._names.get(error.value, str(error))
            return None
        except AttributeError:  # the bindings are older than the question
            self._errors[field] = "FUNCTION_NOT_FOUND"
            return None
        self._errors.pop(field, None)
        return _text(answer)

    def _yes(self, field: str, what: str) -> bool | None:
        answer = self._ask(field, what)
        return None if answer is None else bool(answer)

    def read(self) -> None:
        pci, pstate = self._ask("pci", "PciInfo"), self._ask("pstate", "PerformanceState")
        capability = self._ask("compute_capability", "CudaComputeCapability")
        reasons = self._ask("clock_reasons", "CurrentClocksEventReasons")
        if reasons is None:  # its name before driver 535
            reasons = self._ask("clock_reasons", "CurrentClocksThrottleReasons")
        self._found |= {
            "name": self._ask("name", "Name"),
            "pci": pci and _text(pci.busId),
            "compute_capability": capability and ".".join(map(str, capability)),
            "pstate": None if pstate == _UNKNOWN_PSTATE else pstate,
            "persistence": self._yes("persistence", "PersistenceMode"),
            "display_active": self._yes("display_active", "DisplayActive"),
            "temperature_c": self._ask("temperature_c", "Temperature", self._nv.NVML_TEMPERATURE_GPU),
            "clock_reasons": reasons,
            **self._clocks(),
            **self._memory(),
            **self._mig(),
            "processes": list(self._processes()),
        }

    def _clocks(self) -> dict[str, Any]:
        nv: Any = self._nv
        found: dict[str, Any] = {}
        found["sm_mhz"] = self._ask("sm_mhz", "ClockInfo", nv.NVML_CLOCK_SM)
        questions = {"": "ClockInfo", "max_": "MaxClockInfo", "applications_": "ApplicationsClock",
                     "default_applications_": "DefaultApplicationsClock"}  # fmt: skip
        for kind, number in {"graphics": nv.NVML_CLOCK_GRAPHICS, "memory": nv.NVML_CLOCK_MEM}.items():
            for before, what in questions.items():
                field = f"{before}{kind}_mhz"
                found[field] = self._ask(field, what, number)
        return {**found, "supported": self._supported()}

    def _supported(self) -> dict[int, list[int]]:
        """Graphics clocks by memory clock."""
        memory = self._ask("supported", "SupportedMemoryClocks") or []
        return {mhz: self._ask("supported", "SupportedGraphicsClocks", mhz) or [] for mhz in memory}

    def _memory(self) -> dict[str, Any]:
        """Without what the driver keeps for itself, as nvidia-smi has it; with it where the driver is old."""
        new = getattr(self._nv, "nvmlMemory_v2", None)
        found = (new and self._ask("memory_used_bytes", "MemoryInfo", new)) or self._ask(
            "memory_used_bytes", "MemoryInfo"
        )
        return {"memory_used_bytes": found and found.used, "memory_total_bytes": found and found.total}

    def _mig(self) -> dict[str, Any]:
        modes = self._ask("mig", "MigMode")
        parts = []
        for n in range(self._ask("mig_uuids", "MaxMigDeviceCount") or 0) if modes and modes[0] else ():
            try:
                part = self._nv.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, n)
                parts.append(_text(self._nv.nvmlDeviceGetUUID(part)))
            except self._nv.NVMLError:  # there are fewer than there might be
                continue
        return {"mig": modes and bool(modes[0]), "mig_uuids": parts}

    def _processes(self) -> Iterator[dict[str, Any]]:
        for kind in ("Compute", "Graphics"):
            for process in self._ask(f"{kind.lower()}_processes", f"{kind}RunningProcesses") or ():
                try:
                    name = _text(self._nv.nvmlSystemGetProcessName(process.pid))
                except (self._nv.NVMLError, AttributeError, UnicodeDecodeError):
                    name = None
                used = process.usedGpuMemory
                yield {"pid": process.pid, "kind": kind.lower(), "memory_bytes": used, "name": name}

    def look_at_use(self) -> None:
        use = self._ask("utilization_pct", "UtilizationRates")
        self._utilization_pct += [] if use is None else [use.gpu]

    def result(self) -> dict[str, Any]:
        return {**self._found, "utilization_pct": self._utilization_pct, "errors": self._errors}


def _text(text: Any) -> Any:
    """nvidia-ml-py before 11.5 gives bytes."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def look(nv: Any, window_s: float) -> dict[str, Any]:
    """Every GPU, with its utilisation over the window. Raises NVMLError."""
    until, readers, notes = time.monotonic() + window_s, [], []
    for index in range(nv.nvmlDeviceGetCount()):
        try:
            readers.append(Reader(nv, index))
        except nv.NVMLError as error:  # one that is lost must not hide the others
            notes.append(f"GPU {index} can't be read: {error}")
    for reader in readers:
        reader.read()
    while True:
        for reader in readers:
            reader.look_at_use()
        if time.monotonic() + PERIOD_S > until:
            break
        time.sleep(PERIOD_S)
    driver = _text(nv.nvmlSystemGetDriverVersion())
    return {"driver": driver, "gpus": [reader.result() for reader in readers], "notes": notes}


def answer(window_s: float) -> dict[str, Any]:
    try:
        import pynvml
    except ImportError:
        return {"error": "nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
        return look(pynvml, window_s)
    except pynvml.NVMLError as error:
        return {"error": f"NVML: {error}"}


if __name__ == "__main__":
    print(json.dumps(answer(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)))
