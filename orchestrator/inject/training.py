"""Where torch tells of steps: a training step ends with the optimizer's, an inference step with the outermost module's
call. Nothing is hooked inside of what torch.compile compiles, and no module gets a hook that would slow its calls."""

from __future__ import annotations

import sys
from _thread import get_ident
from time import perf_counter_ns

from . import boot, compiled, diary, pending, profiler, window
from .around import AroundSpecial, around_function, around_method, around_special, learn
from .imports import when_imported
from .phases import Loading, Phase, stand_in
from .steps import CLAIMS, CODE_BITS, INFERENCE, PHASES, TRAIN, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from functools import partial
    from typing import Any

    After = Callable[[], object]
else:
    from _functools import partial

DATA, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, CHECKPOINT, EVALUATION = range(len(PHASES))
_SEARCH_STEPS = 3
"""For so many steps every outermost module is looked for; after that only the known ones are timed."""

_active: Training | None = None


def begin(torch: Any, settings: dict[str, Any]) -> None:
    """Starts counting in this process, which has just imported torch."""
    global _active
    _active = Training(torch, settings)
    _active.install()


def window_now() -> window.Window | None:
    """That of this process; None before torch is there."""
    return None if _active is None else _active.window


def forked() -> None:
    if _active is not None:
        _active.forked()


def finish(why: str) -> None:
    """Ends and saves whatever is on."""
    if _active is not None:
        _active.finish(why)


class Training:
    """What is known of the training, or of the inference, in this process."""

    def __init__(self, torch: Any, settings: dict[str, Any]) -> None:
        self.torch, self.settings = torch, settings
        self.is_child = False
        """Forked off: until its first step it leaves no traces."""
        self._digests = bool(settings.get("digest"))
        self.is_grad_enabled = torch.is_grad_enabled
        self._waits_for_range = False
        self.optimizers = 0
        self.steps = Steps(None, None)
        self._begin_anew()
        self._roots: set[type] = set()
        self._search: AroundSpecial | None = None

    def _begin_anew(self) -> None:
        """As a process of which nothing is known yet."""
        self.leader: int | None = None
        """The id of the optimizer whose steps are the training's."""
        self._others: dict[int, int] = {}
        """How many steps had ended when each of the other optimizers stepped."""
        self.busy = 0
        """The phase of the module call that is going on."""
        self._in_step = self._due = False
        self._fingerprinted: dict[int, Any] = {}
        """The optimizers that have stepped, by their ids, where steps are fingerprinted."""
        self._scaled = False
        self._makes_steps: bool | None = None
        self.steps.begin_anew(self._file(), boot.rank())
        self.steps.on_record = self.wait_for_ranges
        self.steps.profiled += self._digests  # fingerprints take time: no average is made of these
        self.window = window.Window(self.torch, self.settings, self.steps, self.is_child)

    @staticmethod
    def _file() -> str | None:
        stem = diary.stem()
        return stem and stem + ".steps"

    # ------------------------------------------------------------ hooks

    def install(self) -> None:
        torch = self.torch
        from opcode import opmap  # both are there, as torch needs them

        from torch.optim import optimizer

        compiled.begin(torch)
        optimizer.register_optimizer_step_pre_hook(compiled.hook(self._before_step))
        optimizer.register_optimizer_step_post_hook(compiled.hook(self._after_step))
        learn(opmap)
        around_method(optimizer.Optimizer, "__init__", self._new_optimizer)
        stand_in(optimizer.Optimizer, "zero_grad", compiled.OptimizerPhase, self.steps, ZERO_GRAD)
        if self._digests:
            around_method(torch.Tensor, "backward", self._before_backward)
        else:
            stand_in(torch.Tensor, "backward", Phase, self.steps, BACKWARD)
        around_function(torch, "save", self._phase(CHECKPOINT))
        for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            when_imported(name, self._watch_scaler)
        when_imported("torch.utils.data.dataloader", self._watch_data)
        when_imported("torch._dynamo.eval_frame", self._watch_compiled)
        when_imported("torch._dynamo.trace_rules", compiled.hide)
        if self.settings.get("torch") or self.settings.get("armed"):
            self._look_out_for_profilers()
        around_special(torch.nn.Module, "__call__", self._before_unknown_module)
        self._search = torch.nn.Module.__dict__["__call__"]

    def _phase(self, phase: int) -> Callable[[Any], After | None]:
        """A `before` that counts a call as this phase."""
        return partial(self.steps.begin, phase)

    def _look_out_for_profilers(self) -> None:
        offered = self.torch.profiler
        kinds = (offered.profile, offered._KinetoProfile, self.torch.autograd.profiler.profile)
        for kind, name in zip(kinds, ("start", "start", "__enter__")):
            if name in kind.__dict__:
                around_method(kind, name, lambda other: self.window.before_profiler(other))
        if self.settings.get("armed"):
            profiler.count_all(self.torch.autograd.profiler)

    def _watch_scaler(self, module: Any) -> None:
        if "step" in module.GradScaler.__dict__:
            around_method(module.GradScaler, "step", self._before_scaled_step)

    def _watch_data(self, dataloader: Any) -> None:
        stand_in(dataloader._BaseDataLoaderIter, "__next__", Loading, self.steps, DATA, self._before_data)

    def _watch_compiled(self, eval_frame: Any) -> None:
        """A module that torch.compile made of another one stands outside of what it compiles."""
        if "__call__" in eval_frame.OptimizedModule.__dict__:
            stand_in(eval_frame.OptimizedModule, "__call__", _Module, self)

    # ------------------------------------------------------------ data and modules

    def _before_data(self, _iterator: Any) -> After | None:
        return self.steps.begin(DATA) if self._makes_steps or self._counts() else None

    def _before_unknown_module(self, module: Any) -> After | None:
        """An outermost module that was not seen before: its class is watched from now on."""
        kind = type(module)
        if self.busy or kind in self._roots:
            return None
        after = self._before_module(module)
        if after is not None:
            self._roots.add(kind)
            home = next(home for home in kind.__mro__ if "__call__" in home.__dict__)
            own = home.__dict__["__call__"]
            kind.__call__ = _Module(getattr(own, "method", own), self, home)  # type: ignore[assignment]
        return after

    def _before_module(self, _module: Any) -> After | None:
        if self.busy or not (self._makes_steps or self._counts()) or self.steps.loading:
            return None
        phase = EVALUATION if self.optimizers and not self.is_grad_enabled() else FORWARD
        if self.steps.begin(phase) is None:
            return None
        self.busy = phase
        return self.after_module

    def after_module(self) -> None:
        """The outermost module's call is over."""
        phase, self.busy = self.busy, 0
        if not phase:  # a step has ended inside of it
            return
        self.steps.end(phase)
        if not self.optimizers:
            self._ended(INFERENCE)

    def _counts(self) -> bool:
        """Whether this process makes steps at all: the workers of a DataLoader don't. The first step begins here."""
        counts = self._makes_steps
        if counts is None:
            worker = sys.modules.get("torch.utils.data._utils.worker")
            self._makes_steps = counts = worker is None or worker.get_worker_info() is None
            if counts:
                self.window.first()
        return counts

    # ------------------------------------------------------------ training

    def _new_optimizer(self, _optimizer: Any) -> None:
        self.optimizers += 1

    def _before_backward(self, loss: Any) -> After | None:
        if self.steps.loss is None:
            self.steps.loss = _number(loss)
        return self.steps.begin(BACKWARD)

    def _before_step(self, _optimizer: Any) -> None:
        try:
            if (self._makes_steps or self._counts()) and self.steps.begin(OPTIMIZER) is not None:
                self._in_step = True
        except BaseException as error:
            pending.fault("an optimizer's step", error)

    def _after_step(self, optimizer: Any) -> None:
        try:
            if not self._in_step or get_ident() != self.steps.owner:
                return
            self._in_step, self._scaled = False, True
            if self._digests:
                self._fingerprinted[id(optimizer)] = optimizer
            if id(optimizer) != self.leader and not self._is_new_leader(id(optimizer)):
                self.steps.end(OPTIMIZER)
                return
            if self._digests:
                self.steps.digest = _fingerprint(self.torch, self._fingerprinted.values())
            if self._waits_for_range:
                self._due = True
            else:
                self._ended(TRAIN)
        except BaseException as error:
            pending.fault("an optimizer's step", error)

    def wait_for_ranges(self, on: bool) -> None:
        """While torch.profiler records, a step ends with the range that the optimizer puts around its own: torch's
        marks for steps would else begin and end inside of it, and no timeline can draw what overlaps in part."""
        record = self.torch.autograd.profiler.record_function
        if on == self._waits_for_range:
            return
        self._waits_for_range = on
        if on:
            around_special(record, "__exit__", self._before_range_ends)
        else:
            record.__exit__ = record.__dict__["__exit__"].method

    def _before_range_ends(self, _range: Any) -> After:
        return self._after_range

    def _after_range(self) -> None:
        if self._due and get_ident() == self.steps.owner:
            self._due = False
            self._ended(TRAIN)

    def _is_new_leader(self, optimizer: int) -> bool:
        """Of several optimizers the first one's steps end those of the training, until another one steps twice without
        it: it was given up, or steps less often."""
        self.optimizers = self.optimizers or 1  # one that was made in a way we have not seen
        if self.leader is None or self._others.get(optimizer) == self.steps.count:
            self.leader = optimizer
            return True
        self._others[optimizer] = self.steps.count
        return False

    def _before_scaled_step(self, _scaler: Any) -> After | None:
        self._scaled = False
        return self._after_scaled_step if self.optimizers == 1 and self.steps.is_mine() else None

    def _after_scaled_step(self) -> None:
        """Where gradients had overflowed the scaler has skipped the optimizer's step; the training's has ended."""
        if not self._scaled:
            self._ended(TRAIN)

    def _ended(self, kind: int) -> None:
        if self.is_child:
            self._own_diary()
        if kind != self.steps.kind:
            self._turn_to(kind)
        self.busy = 0
        self.steps.tick()
        if self._search is not None and self.steps.count >= _SEARCH_STEPS:
            self._end_search()

    def _turn_to(self, kind: int) -> None:
        before = self.steps.kind
        self.steps.turn_to(kind)
        if before:
            self.window = self.window.again()
        diary.write("steps", kind="train" if kind == TRAIN else "inference", rank=self._rank())

    def _rank(self) -> int | None:
        """As torch has it by now: a spawned process may have been given it by no variable."""
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            rank: int = distributed.get_rank()
            return rank
        return boot.rank()

    def _end_search(self) -> None:
        """From here on the calls of inner modules cost nothing again."""
        search, self._search = self._search, None
        if search is not None and self.torch.nn.Module.__dict__.get("__call__") is search:
            self.torch.nn.Module.__call__ = search.method

    # ------------------------------------------------------------ ends

    def forked(self) -> None:
        """A child that was forked off: another process. What it is told by its parent's optimizers still holds: with
        some, it does not infer."""
        self.window.abandon()
        self.is_child = True
        self._begin_anew()

    def _own_diary(self) -> None:
        self.is_child = False
        boot.sign_in_again()
        self.steps.keep_in(self._file(), boot.rank())

    def finish(self, why: str) -> None:
        if self.is_child:
            return
        if not self.steps.kind and self.optimizers and self.steps.has_seen(BACKWARD):
            diary.write("note", text="no optimizer's step was seen: torch.compile has made it a part of something else")
        self.window.finish(why)


class _Module(AroundSpecial):
    """Stands in for the `__call__` of modules that are called by the program itself. In the thread of the steps, where
    most calls are those of modules inside of others, it takes the short way."""

    def __init__(self, method: Any, training: Training, home: Any = None) -> None:
        """`home` is the class that the method comes from, where it is another one than this will stand in."""
        super().__init__(method, training._before_module)
        self._training, self._steps, self._home = training, training.steps, home

        class Call(partial):  # type: ignore[type-arg]
            __slots__ = ()

            def __del__(self) -> None:
                try:
                    training.after_module()
                except BaseException as error:
                    pending.fault(self.func, error)

        pending.watch(Call.__del__)
        self._call = Call

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        training, steps = self._training, self._steps
        if self._home is not None:
            now = self._home.__dict__["__call__"]
            if now is not self.method and getattr(now, "method", None) is not self.method:
                return now.__get__(instance, owner)  # somebody else watches all modules, such as torch.fx for a trace
        if instance is None or get_ident() != steps.owner or steps.claim < CLAIMS[FORWARD]:
            return AroundSpecial.__get__(self, instance, owner)
        if training.busy or steps.loading:
            return self.method.__get__(instance, owner)
        phase = EVALUATION if training.optimizers and not training.is_grad_enabled() else FORWARD
        call = self._call(self.method, instance)  # first: an exception from here on ends it, and with it what is begun
        training.busy = phase
        steps.put(perf_counter_ns() << CODE_BITS | phase + 1)
        return call


# ---------------------------------------------------------------- whether two runs are the same


def _number(loss: Any) -> float:
    """The value of a tensor that backward is called on; several are added up."""
    value = loss.detach()
    return float(value.sum() if value.numel() != 1 else value)


_PART_BYTES = 4 << 20
"""So much is looked at together: it takes 24 times as much memory, of which a GPU may have little left."""


def _fingerprint(torch: Any, optimizers: Iterable[Any]) -> int:
    """64 bits of the bits of all their parameters and of their places: two sums of each, weighted by a number of its
    own."""
    total = 0
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        for parameter in group["params"]:
            whole = parameter.detach().contiguous().reshape(-1).view(torch.uint8)
            for part in whole.split(_PART_BYTES):
                bits = part.to(torch.int64)
                weights = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int64) % 65521 + 1
                total = (total * 1000003 + int((bits * weights).sum()) * 31 + int(bits.sum())) & 0xFFFFFFFFFFFFFFFF
    return total
