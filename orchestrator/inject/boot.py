"""The first thing that runs in each Python process of the target: reads the settings, signs in, starts the parts."""

from __future__ import annotations

import atexit
import marshal
import os
import sys

from . import bell, diary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS = "PROFRUN_INJECT"
"""The variable that names the file of settings: a dict, by `marshal` (which needs no import), in a format that every
Python 3 reads."""
RANKS = (
    "RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "PALS_RANKID",
    "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "SLURM_PROCID",
)  # fmt: skip
LOCAL_RANKS = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID",
    "JSM_NAMESPACE_LOCAL_RANK", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
)  # fmt: skip
SIZES = (
    "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE",
    "SLURM_NTASKS",
)  # fmt: skip
LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate-launch",
    "accelerate.commands.launch", "deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner",
)  # fmt: skip
"""Programs and modules that start the ranks, as far as they are Python. All as in launching.py."""
SHOWN = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
HELD = "PROFRUNHELD"
_PR_SET_PTRACER = 0x59616D61

settings: dict[str, Any] = {}


def start(path: str | None = None) -> None:
    """Does what the settings ask for, in the file that the environment names where none is given. Raises nothing into
    the program."""
    path = path or os.environ.get(SETTINGS)
    if not path or sys.implementation.name != "cpython":
        return
    try:
        with open(path, "rb") as file:
            settings.update(marshal.loads(file.read()))
    except (OSError, ValueError, EOFError, TypeError):
        return  # the pass is over: this process has outlived it
    folder = path.rpartition("/")[0]
    if not settings.get("armed"):  # where nobody looks yet, nobody is told
        bell.hang_in(folder, settings.get("pids"))
        sign_in(folder)
    settings["folder"] = folder
    _leave_to_others()
    for part in (_allow_tracing, _start_parts):
        try:
            part()
        except Exception as error:  # a Python without ctypes, say: the rest is still in force
            diary.trouble(part, error)
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_end)  # the first to be registered is the last to run: after all of the program's own
    if settings.get("hold") and HELD not in os.environ and not _starts_ranks():  # each rank is held by itself
        os.environ[HELD] = "1"  # what this one starts is followed through it
        bell.ring("python")


def sign_in(folder: str | None = None) -> None:
    """Begins this process's diary."""
    diary.open_in(folder)
    _sign_in()


def sign_in_again() -> None:
    """In a forked child that has turned out to be of interest."""
    if settings.get("armed"):
        _listen()
    else:
        sign_in()


def rank() -> int | None:
    """This process's global rank as its launcher tells it; None where none does."""
    return _number(*RANKS)


def ranks_here() -> list[int] | None:
    """[first, number] of the ranks that belong to this program on this machine; None where no launcher tells."""
    own, local, count = rank(), _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    if own is None or local is None or count is None:
        world = _number("WORLD_SIZE")
        return None if own is None or world is None else [0, world]
    return [own - local, count]


def _number(*names: str) -> int | None:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None)


def _sign_in() -> None:
    diary.write(
        "start",
        pid=bell.pid(),
        host=os.uname().nodename,
        rank=rank(),
        local_rank=_number(*LOCAL_RANKS),
        world_size=_number(*SIZES),
        program=_program(_command_line()),
        executable=sys.executable,
        python=sys.version.split()[0],
        environ=_started_with(),
    )


def _program(words: list[str] | None) -> list[str] | None:
    """The interpreter with its options and the script or module. What comes after may hold secrets, as may `-c`."""
    if words is None:
        return None
    program, rest = words[:1], iter(words[1:])
    for word in rest:
        options = word[1:] if word.startswith("-") and not word.startswith("--") else ""
        if "c" in options and options[:1] not in ("W", "X"):
            return [*program, "-c"]
        program.append(word)
        if options in ("W", "X"):
            program.append(next(rest, ""))
        elif options.endswith("m"):
            return [*program, next(rest, "")]
        elif not word.startswith("-"):
            break
    return program


def _command_line() -> list[str] | None:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return None


def _started_with() -> dict[str, str | None] | None:
    """The variables that decide how a program runs, as this process was started with them (the program may have changed
    os.environ by the time somebody asks)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0")]
    except OSError:
        return None
    known = {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, _, text in pairs}
    return {name: known.get(name) for name in SHOWN}


def _starts_ranks() -> bool:
    """Whether this is no program but a launcher of ranks."""
    words = _program(_command_line()) or [""]
    return words[-1].rpartition("/")[2] in LAUNCHERS


def _leave_to_others() -> None:
    """Where only some ranks are to be looked at closely, the others still count their steps, and stop with them."""
    chosen, own = settings.get("ranks"), rank()
    if chosen and own is not None and own not in chosen:
        window = settings.get("window")
        settings.update(torch=None, hold=False, window=window and dict(window, look=False))


def _allow_tracing() -> None:
    """Where only ancestors may trace, a process has to let others in by itself."""
    if settings.get("tracer") and not bell.is_abroad():  # where that number is somebody else, or nobody
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, settings["tracer"], 0, 0, 0)


def _start_parts() -> None:
    from . import imports

    if settings.get("seeds"):
        from . import seeds

        part = settings["seeds_part"] = seeds.Seeds(settings["seeds"])
        part.at_start()
        for name, then in part.after_import.items():
            imports.when_imported(name, then)
    if settings.get("ranges"):
        from . import ranges

        ranges.begin(settings["ranges"], bool(settings.get("nvtx")))
    imports.when_imported("torch", _torch_is_here)


def _torch_is_here(torch: Any) -> None:
    from . import training

    diary.write("torch", version=str(torch.__version__))
    training.begin(torch, settings)
    if settings.get("armed"):
        _listen()


def _listen() -> None:
    from . import armed

    armed.listen(settings["folder"])


def _forked() -> None:
    """In the child of a fork: another process, with a diary of its own if it turns out to have steps."""
    try:
        diary.forget()
        for name in (".training", ".ranges", ".armed"):
            part = sys.modules.get(__package__ + name)
            if part:
                part.forked()
    except Exception as error:
        diary.trouble("a fork", error)


def _end() -> None:
    """Everything of ours is off and saved when the interpreter goes on to end."""
    try:
        training = sys.modules.get(__package__ + ".training")
        if training:
            training.finish("exit")
        ranges = sys.modules.get(__package__ + ".ranges")
        if ranges:
            ranges.finish()
        armed = sys.modules.get(__package__ + ".armed")
        if armed:
            armed.close()
        part = settings.get("seeds_part")
        diary.write("end", seeds=part.read_back() if part else None)
    except Exception as error:
        diary.trouble("the end", error)
