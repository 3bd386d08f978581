"""torch.profiler on a window of this process, bounded in steps, seconds and memory, and out of the way of the program's
own profiler."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from functools import partial

from . import bell, boot, diary, pending
from .around import around_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .steps import Steps

_LOOK_S = 0.05
_AVERAGES_BYTES = 8 << 20
"""torch needs seconds for the averages of a longer trace: those are made from the file, after the run."""

_started: list[bool] = []
"""Not empty when torch's profiler was ever started in this process, or in the one that it was forked off."""
_running = [0]
"""How many profilers are on in this process, ours among them, where they are counted."""
_INTRODUCED_S = 2.0
_DEAF_S = 2.0
"""A main thread that has not come to its Python for so long after SIGTERM is inside of a call into C that does not end:
a rank that waits for one that has died."""
_SAVED_S = 120.0
"""How long the end of the program waits for another thread that writes the trace."""


def count_all(module: Any) -> None:
    """Counts the profilers of torch.autograd.profiler, whoever starts them, from now on: torch itself tells a thread of
    its own one only."""
    for name, change in (("_enable_profiler", 1), ("_disable_profiler", -1)):
        if hasattr(module, name):
            around_function(module, name, partial(_count, change))


def _count(change: int, _nothing: Any) -> None:
    _running[0] += change


def of_all_threads() -> Any:
    """What torch.profiler must be told to record all threads, so that any may start and stop it; None where this torch
    can't."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(profile_all_threads=True)
    except (ImportError, TypeError):
        return None


class Profiler:
    """One recording. `first` is the number of its first step; None when it goes by time."""

    def __init__(self, torch: Any, options: dict[str, Any], steps: Steps) -> None:
        self._torch, self._options, self._steps = torch, options, steps
        self.first: int | None = options.get("skip")
        self.count: int = options.get("steps") or 0
        self._profile: Any = None
        self._by_steps = True
        self._state = "waiting"
        self._cut: str | None = None
        """Why the recording was ended before its time."""
        self._start_s: float | None = None
        self._ended = 0.0
        self._real_exit: Callable[[int], Any] | None = None
        self._handler: Callable[[int, Any], None] | None = None
        self._turn = _thread.RLock()
        """Where several threads may end it, the first does."""
        self._saver = 0
        self._of_all: Any = None
        """Set where all threads are recorded: then any thread may start and stop it."""
        self._skipped = 0
        self._late = 0
        """A signal that came while the trace was written, and ends the program right after."""
        self._ear: tuple[int, int] | None = None
        """A pipe into which a rank's signals are told, whatever its main thread does."""
        self._at_ear = _thread.allocate_lock()
        self._heard = 0.0
        """When it was told of SIGTERM."""
        self._answers = False
        """Whether the main thread has been between two instructions since then."""

    # ------------------------------------------------------------ by steps

    def start(self) -> None:
        """At the end of the step before the first one, or before the very first."""
        if self.first is not None and not self._by_steps and self._start_s is not None:
            self.cancel()  # it was recorded by time for want of steps, and here they are
            self._by_steps, self._state, self._cut = True, "waiting", None
        if self._state != "waiting" or self.first is None:
            return
        first, last = self.first, self.first + self.count - 1
        action = self._torch.profiler.ProfilerAction

        def schedule(step: int) -> Any:
            if first <= step < last:
                return action.RECORD
            if step == last:
                return action.RECORD_AND_SAVE
            return action.WARMUP if step < first else action.NONE

        self._begin(schedule, self._steps.count)

    def step(self) -> None:
        """At the end of every step of the window."""
        if self._state != "recording" or not self._by_steps or self.first is None:
            return
        if self._cut:
            self._stop()
            return
        ended, self._ended = self._steps.count >= self.first + self.count, time.perf_counter()
        if ended:
            self._state = "saving"  # it does so after the last one
        try:
            self._profile.step()
        finally:
            if self._state == "saving":
                self._state = "recording"
        if ended:
            self._stop()

    # ------------------------------------------------------------ by time

    def begin_by_time(self) -> None:
        """Records a stretch of time: asked for by the plan, or because this program shows no sign of a step."""
        for wish in ("after_s", "without_steps_after_s"):
            if wish in self._options:
                _thread.start_new_thread(self._wait_and_record, (self._options[wish],))

    def _wait_and_record(self, after_s: float) -> None:
        time.sleep(after_s)
        if self.first is None or self._steps.owner is None:
            pending.in_main_thread(self._record_now)

    def _record_now(self) -> None:
        if self._state == "waiting":
            self._by_steps = False
            self._begin(None, 0)

    # ------------------------------------------------------------ woken from outside

    def record_now(self) -> None:
        """By time, and from any thread."""
        self._by_steps, self._of_all = False, of_all_threads()
        if self._of_all is None:
            pending.in_main_thread(self._record_now)
        else:
            self._introduce()
            self._record_now()

    def first_from(self, count: int) -> int:
        """The number of its first step, where `count` have ended; until then it was the number of those to skip."""
        self._skipped = self.first or 0
        self.first = count + 1 + self._skipped
        return self.first

    def begin_anew(self) -> None:
        """What was recorded were no steps of the training."""
        self.cancel()
        self._state, self._cut, self.first = "waiting", None, self._skipped

    def is_on(self) -> bool:
        return self._state == "recording"

    def is_over(self) -> bool:
        return self._state == "done"

    def end(self) -> None:
        """Whoever has asked for it has seen enough."""
        stop = partial(self._stop_this, self._profile)
        if self._state == "waiting":
            self.finish("")
        elif not self._by_steps:
            self._where_it_began(stop)
        elif self._state == "recording":
            self._cut = self._cut or "it was ended before all of its steps had been made"
            if self._steps.owner == threading.main_thread().ident:  # else with the next step
                pending.in_main_thread(stop)

    def drop(self) -> None:
        """Whoever has asked for it is gone: nothing is saved."""
        profile = self._profile
        if profile is not None:
            profile.on_trace_ready = None
        self.end()

    def _where_it_began(self, function: Callable[[], object]) -> None:
        """torch's profiler belongs to the thread that has started it, except where it records all."""
        if self._of_all is not None:
            function()
        else:
            pending.in_main_thread(function)

    def _introduce(self) -> None:
        """The first thread to use torch's profiler has to be that which has imported torch, or a line on stderr tells
        of it. A main thread that does not come to it in a moment leaves us that line."""
        if _started:
            return
        late: list[bool] = []
        over = _thread.allocate_lock()
        over.acquire()

        def use_once() -> None:
            if not late and not _running[0]:
                self._profile = profile = self._torch.profiler.profile(
                    activities=[self._torch.profiler.ProfilerActivity.CPU]
                )
                self._start_light(profile)
                self._quiet(profile)
                self._profile = None
            over.release()

        pending.in_main_thread(use_once)
        if not over.acquire(timeout=_INTRODUCED_S):
            late.append(True)

    # ------------------------------------------------------------ starting and stopping

    def _begin(self, schedule: Any, step: int) -> None:
        """Starts the recording; the steps of a schedule bear the numbers that ours have: `step` is the present one."""
        if self._torch.autograd._profiler_enabled() or _running[0]:
            self._step_aside()
            return
        began = time.perf_counter()
        self._profile = profile = self._new_profile(schedule)
        if schedule is not None:
            profile.step_num = step
            profile.current_action = schedule(step)
        self._state = "recording"
        _started.append(True)
        try:
            self._start_light(profile)
            self._name_rank(profile)
            self._record_history()
        except BaseException as error:
            self._state, self._profile = "done", None
            self._quiet(profile)
            self._tell_of_failure("start", error)
            raise
        self._steps.profiled += 1
        self._steps.on_record(schedule is not None)
        self._guard_ends()
        self._start_s = round(time.perf_counter() - began, 3)
        _thread.start_new_thread(self._watch, (profile, _own_rss_bytes(), time.monotonic()))

    def _new_profile(self, schedule: Any) -> Any:
        options = self._options
        return self._torch.profiler.profile(
            activities=self._activities(),
            schedule=schedule,
            on_trace_ready=self._save,
            record_shapes=options["shapes"],
            with_stack=options["stacks"],
            profile_memory=options["memory"],
            with_flops=options["flops"],
            **({} if self._of_all is None else {"experimental_config": self._of_all}),
        )

    def _start_light(self, profile: Any) -> None:
        """torch.profiler imports all of torch.compile, for seconds, to ask for one of its settings; a program that has
        not imported it does not use it."""
        lazy: Any = getattr(self._torch, "_lazy_modules", None)
        spared = isinstance(lazy, set) and "_inductor" in lazy and "torch._inductor" not in sys.modules
        if spared:
            lazy.discard("_inductor")
        try:
            profile.start()
        finally:
            if spared:
                lazy.add("_inductor")

    @staticmethod
    def _quiet(profile: Any) -> None:
        """Off, and nothing saved."""
        profile.on_trace_ready = None
        try:
            profile.stop()
        except Exception as error:
            diary.trouble("torch.profiler", error)

    def _activities(self) -> list[Any]:
        activity, wanted = self._torch.profiler.ProfilerActivity, self._options["activities"]
        able = self._torch.profiler.supported_activities()
        named = {"cpu": activity.CPU, "cuda": activity.CUDA}
        missing = [name for name in wanted or () if named[name] not in able]
        if missing:
            diary.write("note", text="torch can't record {} here".format(", ".join(missing)))
        return [named[name] for name in wanted or named if named[name] in able]

    def _name_rank(self, profile: Any) -> None:
        """Analysers refuse a trace that does not say of which rank it is; torch writes that itself only where
        torch.distributed is in use."""
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return
        rank, size = boot.rank() or 0, os.environ.get("WORLD_SIZE", "1")
        world = int(size) if size.isdigit() else 1
        profile.add_metadata_json("distributedInfo", f'{{"backend": "none", "rank": {rank}, "world_size": {world}}}')

    def _stop(self) -> None:
        """Ends the recording; what there is gets saved on the way."""
        with self._turn:
            if self._state != "recording":
                return
            self._state, self._ended, self._saver = "saving", time.perf_counter(), _thread.get_ident()
        self._steps.on_record(False)
        try:
            self._profile.stop()
        finally:
            self._state = "done"
            self._steps.profiled -= 1
            self._unguard_ends()
            self._profile = None
            if self._late:
                os.kill(os.getpid(), self._late)

    def _stop_this(self, profile: Any) -> None:
        """By the time that this is called, another recording may be on."""
        if self._profile is profile:
            self._stop()

    def finish(self, why: str) -> None:
        """The program is about to end, or its interpreter is: nothing of ours may be on any more."""
        self._let_other_save()
        if self._state == "recording":
            self._cut = self._cut or f"the program ended ({why})"
            self._stop()
            self._tell_of_none()  # it may have only warmed up
        elif self._state == "waiting":
            self._tell_of_none()
        self._state = "done"

    def _let_other_save(self) -> None:
        until = time.monotonic() + _SAVED_S
        while self._state == "saving" and self._saver != _thread.get_ident() and time.monotonic() < until:
            time.sleep(0.01)

    def cancel(self) -> None:
        """What was recorded were no steps of the training: it is forgotten."""
        if self._state == "recording":
            self._profile.on_trace_ready = None
            self._stop()
        self._state = "done"
        ends = (".averages.json", ".memory.pickle", ".facts.json")
        for path in (self._trace(), *(self._stem() + end for end in ends)):
            try:
                os.unlink(path)
            except OSError:
                pass

    def abandon(self) -> None:
        """In a child that was forked off."""
        self._state, self._profile = "done", None
        self._unguard_ends()
        if _started:
            _leave_without_destructors()

    # ------------------------------------------------------------ bounds

    def _watch(self, profile: Any, rss_bytes: int, began: float) -> None:
        """Ends a recording that has become too long or too large; runs beside the program."""
        limit_s, for_s = self._options["max_s"], self._options.get("for_s")
        limit_bytes = self._options["max_rss_bytes" if self._by_steps else "by_time_max_rss_bytes"]
        while self._profile is profile and self._state == "recording":
            time.sleep(_LOOK_S)
            self._listen()
            spent_s = time.monotonic() - began
            if for_s is not None and not self._by_steps and spent_s >= for_s:
                self._where_it_began(partial(self._stop_this, profile))
                return
            if spent_s > limit_s:
                self._cut = f"it had recorded for {limit_s:.0f} s (max_time)"
            elif _own_rss_bytes() - rss_bytes > limit_bytes:
                asked = " (max_memory)" if limit_bytes == self._options["max_rss_bytes"] else ""
                self._cut = f"it had taken {limit_bytes >> 20} MiB of memory{asked}"
            if self._cut:
                self._where_it_began(partial(self._stop_this, profile))
                return

    # ------------------------------------------------------------ saving

    def _save(self, profile: Any) -> None:
        try:
            self._save_all(profile)
        except Exception as error:
            self._tell_of_failure("save its trace", error)
            raise

    def _save_all(self, profile: Any) -> None:
        stem = self._stem()
        profile.export_chrome_trace(stem + ".saving.json")
        size = os.path.getsize(stem + ".saving.json")
        os.makedirs(os.path.dirname(self._trace()), exist_ok=True)
        os.rename(stem + ".saving.json", self._trace())
        if size <= _AVERAGES_BYTES or self._options["flops"]:  # which no trace holds
            self._save_averages(profile, stem)
        self._save_history(stem)
        self._tell(
            recorded=True,
            by_steps=self._by_steps,
            ended=self._steps.count,
            cut=self._cut,
            bytes=size,
            beside=self._of_all is not None,
            start_s=self._start_s,
            save_s=round(time.perf_counter() - self._ended, 3),
        )

    def _trace(self) -> str:
        """In a folder of traces only: analysers take whatever lies beside one for another."""
        folder, _, name = self._stem().rpartition("/")
        return f"{folder}/traces/{name}.trace.json"

    def _stem(self) -> str:
        """The files of this process: of a rank by its host and number, of any by its pid."""
        rank = boot.rank()
        folder, who = self._options["dir"], "" if rank is None else f"{os.uname().nodename}-rank{rank}-pid"
        return f"{folder}/{who}{bell.pid()}"

    def _tell(self, **facts: Any) -> None:
        import json

        facts.update(pid=bell.pid(), rank=boot.rank(), ranks_here=boot.ranks_here(), host=os.uname().nodename)
        with open(self._stem() + ".facts.json", "w") as file:
            json.dump(facts, file)

    def _tell_of_none(self) -> None:
        """That nothing was recorded, where nothing else has been told."""
        if not os.path.exists(self._stem() + ".facts.json"):
            self._tell(recorded=False, why="never", steps=self._steps.count)

    def _tell_of_failure(self, what: str, error: BaseException) -> None:
        said = f"torch.profiler could not {what}: {type(error).__name__}: {error}"
        try:
            self._tell(recorded=False, why="failed", said=said, steps=self._steps.count)
        except OSError:  # where nothing can be written
            pass

    def _save_averages(self, profile: Any, stem: str) -> None:
        """key_averages as torch computes it, for the table that has to equal it."""
        import json

        averages = profile.key_averages(group_by_input_shape=self._options["shapes"])
        with open(stem + ".saving.json", "w") as file:
            json.dump({"schema": 1, "rows": [self._row(average) for average in averages]}, file)
        os.rename(stem + ".saving.json", stem + ".averages.json")

    def _row(self, average: Any) -> dict[str, Any]:
        """A row of key_averages; times in us as torch has them, memory in bytes. What was not recorded is null: torch
        has 0 for it."""
        row = _row(average)
        memory, gpu = self._options["memory"], self._torch.cuda.is_initialized()
        unknown = [name for name in row if name.endswith("memory_usage") and not memory]
        unknown += [name for name in row if "device_time" in name and not gpu]
        unknown += [name for name in row if "device_memory" in name and not gpu]
        unknown += [] if self._options["flops"] else ["flops"]
        return {**row, **dict.fromkeys(unknown)}

    def _record_history(self) -> None:
        if self._options["history"] and self._torch.cuda.is_initialized():
            self._torch.cuda.memory._record_memory_history(max_entries=self._options["history"])

    def _save_history(self, stem: str) -> None:
        if self._options["history"] and self._torch.cuda.is_initialized():
            self._torch.cuda.memory._dump_snapshot(stem + ".memory.pickle")
            self._torch.cuda.memory._record_memory_history(enabled=None)

    # ------------------------------------------------------------ the program's own profiler

    def before_other(self, other: Any) -> None:
        """Two at once would leave the program's own empty, so ours gives way, with what it has."""
        ours = self._profile
        if self._state == "done" or other is ours or (ours is not None and other is ours.profiler):
            return
        if self._state == "recording":
            self._cut = "the program started a profiler of its own"
            self._stop()
        self._step_aside()

    def _step_aside(self) -> None:
        self._state = "done"
        if self._start_s is None:
            self._tell(recorded=False, why="aside", steps=self._steps.count)

    # ------------------------------------------------------------ ends of the program

    def _guard_ends(self) -> None:
        """The ends at which Python runs no atexit: os._exit, and SIGTERM where the program has not dealt with it."""
        import signal

        self._real_exit, os._exit = os._exit, self._exit  # type: ignore[assignment]
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._handler = self._terminated
            signal.signal(signal.SIGTERM, self._handler)
            if boot.rank() is not None:
                self._open_ear()

    def _unguard_ends(self) -> None:
        import signal

        if self._real_exit is not None:
            if os._exit == self._exit:
                os._exit = self._real_exit  # type: ignore[assignment]
            self._real_exit = None
        if self._handler is not None and signal.getsignal(signal.SIGTERM) == self._handler:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            except ValueError:  # not the main thread: it stays, and ends the program as the default does
                return
            self._handler = None
            self._close_ear()

    def _open_ear(self) -> None:
        """Unless the program listens itself, as asyncio does."""
        import signal

        self._ear = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(self._ear[1], warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            self._close_ear()

    def _close_ear(self) -> None:
        """In the main thread."""
        import signal

        if self._ear is not None:
            now = signal.set_wakeup_fd(-1)
            if now not in (-1, self._ear[1]):
                signal.set_wakeup_fd(now)
            held = self._at_ear.acquire(timeout=_DEAF_S)  # a child may have been forked off while it was held
            ear, self._ear = self._ear, None
            for end in ear:
                os.close(end)
            if held:
                self._at_ear.release()

    def _listen(self) -> None:
        """Ends the program as SIGTERM had done without us, where its main thread does not come to our handler."""
        import signal

        told = b""
        with self._at_ear:
            if self._ear and not self._heard:
                try:
                    told = os.read(self._ear[0], 64)
                except OSError:
                    pass
        if signal.SIGTERM in told:
            self._heard, self._answers = time.monotonic(), False
            pending.in_main_thread(self._answer)
        if self._heard and not self._answers and time.monotonic() - self._heard > _DEAF_S:
            diary.write("note", text="a rank was ended amid a call that did not end: torch.profiler's trace is lost")
            import ctypes

            default = ctypes.CDLL(None).signal
            default.argtypes = [ctypes.c_int, ctypes.c_void_p]  # SIG_DFL is 0
            default(signal.SIGTERM, None)
            os.kill(os.getpid(), signal.SIGTERM)

    def _answer(self) -> None:
        """It was the signal of a child that has just been forked off, or the handler comes next."""
        self._answers, self._heard = True, 0.0

    def _exit(self, status: int) -> None:
        really = self._real_exit or os._exit
        try:
            self.finish("os._exit")
        finally:
            really(status)

    def _terminated(self, number: int, _frame: Any) -> None:
        """Saves, and ends as SIGTERM does by default. A program that has put its own handler in this one's place, and
        calls what was there before, would have had nothing to call."""
        import signal

        if signal.getsignal(number) != self._handler:
            return
        if self._state == "saving":
            self._late = number
            return
        try:
            self.finish("SIGTERM")
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _row(average: Any) -> dict[str, Any]:
    """A row of key_averages; times in us as torch has them, memory in bytes."""
    return {
        "key": average.key,
        "device_type": str(average.device_type).rpartition(".")[2],
        "input_shapes": str(average.input_shapes) if average.input_shapes else None,
        "count": average.count,
        "cpu_time_total": average.cpu_time_total,
        "self_cpu_time_total": average.self_cpu_time_total,
        "device_time_total": _any(average, "device_time_total", "cuda_time_total"),
        "self_device_time_total": _any(average, "self_device_time_total", "self_cuda_time_total"),
        "cpu_memory_usage": average.cpu_memory_usage,
        "self_cpu_memory_usage": average.self_cpu_memory_usage,
        "device_memory_usage": _any(average, "device_memory_usage", "cuda_memory_usage"),
        "self_device_memory_usage": _any(average, "self_device_memory_usage", "self_cuda_memory_usage"),
        "flops": average.flops,
    }


def _any(average: Any, *names: str) -> Any:
    """The first of these that this version of torch has: `cuda` became `device` in 2.4."""
    return next((getattr(average, name) for name in names if hasattr(average, name)), None)


def _leave_without_destructors() -> None:
    """At the end of this forked child, one destructor of torch's would wait for ever for a thread that only its parent
    has: the child ends right before the destructors, with C's files flushed as ever."""
    import ctypes

    library = ctypes.CDLL(None)
    try:
        library.on_exit(library._exit, None)  # called as _exit(status)
        library.__cxa_atexit(library.fflush, None, None)  # registered last, so called first
    except AttributeError:  # not the C library of GNU
        return


def _own_rss_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
