"""Where the tracer's events (calls, returns, lines) come from, and who writes them.

From Python 3.12 on, sys.monitoring tells each code object apart, so that code that is not traced costs nothing after its first
call. Before, every call of a thread goes through its profile function (calls) or trace function (lines). Events are written by the
C module `mldebug_training_native` where that is installed, else by Python.
"""

from __future__ import annotations

import sys
import threading

from mldebug_training.common.interrupted import pass_on
from mldebug_training.tracing import ring
from mldebug_training.tracing.ring_writer import RingWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any, Callable, Optional

    from mldebug_training.tracing.ring_file import ProcessRing
    from mldebug_training.tracing.ring_writer import ThreadWriter

    Decide = Callable[..., int]
    Tell = Callable[[str], None]
    Hook = Optional["_Hook"]

MOST_CODES = 65536  # of which Python's writer remembers what was decided
TOOLS = (4, 3)  # numbers of sys.monitoring that belong to no kind of tool
UNTRACED = -1  # `decide`: not followed; any other answer is the id of a name


def native_module() -> Any:
    """The tracer's C module; None where it is not installed or has another layout, or where this Python has no interpreter lock."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    try:
        import mldebug_training_native as found  # type: ignore[import-not-found]

        return found if found.LAYOUT == ring.VERSION else None
    except Exception as error:
        pass_on(error)
        return None


class Engine:
    """The common part of both engines. `decide` gives the number of a code object, or UNTRACED. `report` is called with a
    sentence when the job takes over the mechanism that the tracer uses. `native`: the C module, or None.
    """

    def __init__(self, decide: Decide, report: Tell, mode: int, native: Any) -> None:
        self.decide, self.report, self.mode, self.native = decide, report, mode, native
        self.calls, self.lines = bool(mode & ring.CALLS), bool(mode & ring.LINES)
        self.on = False
        self.writer: RingWriter | None = None
        self.ids: dict[int, tuple[CodeType, int]] = {}
        self.name = f"{self.kind}, {'native' if native else 'python'}"

    @property
    def kind(self) -> str:
        """The name of the mechanism of CPython that this engine uses, as it is written into the ring."""
        return ""

    def use(self, file: ProcessRing) -> RingWriter:
        """Write into this ring file from now on. Returns its writer."""
        self.ids.clear()
        writer = self.writer = RingWriter(file)
        if self.native:
            main = threading.main_thread().ident or 0
            place = file.chunks, file.chunk_size, file.count
            self.native.use(file.mapping, file.mapping.view, *place, main)
        return writer

    def pause(self, paused: bool) -> None:
        """Pause or continue tracing; used around a fork."""
        self.on = not paused
        if self.native:
            self.native.pause(paused)

    def step(self, number: int) -> None:
        """Write into the ring that a step was reached."""
        writer = self.writer
        if writer is None or not self.on:
            return
        if self.native:
            writer.file.step(number)
            self.native.step(number)
        else:
            writer.step(number)

    def again(self) -> None:
        """Forget all decisions, so that each code object is decided anew at its next event."""
        self.ids.clear()
        if self.native:
            self.native.ask_again()

    def forked(self) -> None:
        """In a forked child: forget the parent's ring and all decisions."""
        self.writer = None
        self.ids.clear()
        if self.native:
            self.native.forget()

    def follow(self, code: CodeType) -> None:
        """Have the events of this code object reported; does nothing where the mechanism reports all."""

    def ask(self, code: CodeType) -> int:
        """Decide whether the code object is traced, and return its number or UNTRACED; remembered while tracing is on. For
        the writers in Python.
        """
        if len(self.ids) >= MOST_CODES:
            self.ids.clear()
        number = self.decide(code)
        if self.on:
            self.ids[id(code)] = code, number
        return number

    def function_number(self, code: CodeType) -> int:
        """The number of the code object as `ask` gives it, remembered from an earlier call where possible."""
        found = self.ids.get(id(code))
        return found[1] if found is not None and found[0] is code else self.ask(code)

    def written(self, own: ThreadWriter, name: int, line: int, kind: int) -> None:
        """Write an event of a thread into the ring with its depth, if such events are wanted, and update the depth.

        `own`: the thread's writer; `name`: the number of the function; `kind`: call, return, line and so on (see `ring`).
        """
        writer = self.writer
        if writer is None:
            return
        if kind in (ring.RETURN, ring.UNWIND, ring.YIELD):
            own.depth -= own.depth > 0
        if self.lines if kind == ring.LINE else self.calls:
            writer.put(own, name, line, kind)
        if kind in (ring.CALL, ring.RESUME):
            own.depth += 1


class Monitoring(Engine):
    """Traces by sys.monitoring: all threads at once, beside any debugger and profiler."""

    @property
    def kind(self) -> str:
        """The name of this engine, which uses sys.monitoring (PEP 669)."""
        return "monitoring"

    def begin(self) -> str:
        """Start tracing. Returns "", or a sentence on why that is impossible."""
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        free = [tool for tool in TOOLS if self._monitoring.get_tool(tool) is None]
        if not free:
            return "other tools have taken all of sys.monitoring"
        self._tool = free[0]
        self._monitoring.use_tool_id(self._tool, "mldebug")
        self.on = True
        if self.native:
            self.native.begin(self.decide, self._monitoring.DISABLE, self.mode)
        self._register()
        self._monitoring.restart_events()
        return ""

    def end(self) -> None:
        """Stop tracing and undo all changes to the interpreter."""
        self.on = False
        for event in self._callbacks():
            self._monitoring.register_callback(self._tool, event, None)
        self._monitoring.set_events(self._tool, 0)
        self._monitoring.free_tool_id(self._tool)
        if self.native:
            self.native.end()

    def again(self) -> None:
        """Forget all decisions, and have events of code that was not traced reported again."""
        super().again()
        self._monitoring.restart_events()

    def follow(self, code: CodeType) -> None:
        """Have Python report more events of this function: returns, yields and, if wanted, lines."""
        events = self._monitoring.events
        wanted = events.PY_RETURN | events.PY_YIELD | events.PY_RESUME
        if self.lines:
            wanted |= events.LINE
        self._monitoring.set_local_events(self._tool, code, wanted)

    def _register(self) -> None:
        events = self._monitoring.events
        for event, callback in self._callbacks().items():
            self._monitoring.register_callback(self._tool, event, callback)
        self._monitoring.set_events(
            self._tool, events.PY_START | events.PY_THROW | events.PY_UNWIND
        )
        if self.lines:
            for frame in sys._current_frames().values():
                self._look(frame)

    def _look(self, frame: FrameType | None) -> None:
        """Functions that run already are never started: their code is asked for now."""
        while frame is not None:
            self.decide(frame.f_code, frame.f_globals)
            frame = frame.f_back

    def _callbacks(self) -> dict[int, Any]:
        events, native = self._monitoring.events, self.native
        if native:
            return {
                events.PY_START: native.py_start,
                events.PY_RETURN: native.py_return,
                events.PY_YIELD: native.py_yield,
                events.PY_RESUME: native.py_resume,
                events.PY_THROW: native.py_throw,
                events.PY_UNWIND: native.py_unwind,
                events.LINE: native.line,
            }
        return {
            events.PY_START: self._callback(ring.CALL),
            events.PY_RETURN: self._callback(ring.RETURN),
            events.PY_YIELD: self._callback(ring.YIELD),
            events.PY_RESUME: self._callback(ring.RESUME),
            events.PY_THROW: self._callback(ring.RESUME, False),
            events.PY_UNWIND: self._callback(ring.UNWIND, False),
            events.LINE: self._callback(ring.LINE),
        }

    def _callback(self, kind: int, may_disable: bool = True) -> Callable[..., Any]:
        disable = self._monitoring.DISABLE if may_disable else None
        begins = kind in (ring.CALL, ring.RESUME)

        def callback(code: CodeType, where: int, *_: Any) -> Any:
            if not self.on:
                return None
            name = self.function_number(code)
            if name < 0:
                return disable
            writer = self.writer
            if writer is not None:
                line = code.co_firstlineno if begins else where if kind == ring.LINE else 0
                self.written(writer.thread(), name, line, kind)
            return None

        return callback


class Profile(Engine):
    """The engine before Python 3.12: traces by sys.settrace if lines are wanted, else by sys.setprofile, in each thread.
    A thread that has such a function already is not traced; if that is the thread that starts tracing, none is. Other
    threads that run already are traced only with the C module.
    """

    @property
    def kind(self) -> str:
        """The name of this engine, which uses sys.settrace for lines, else sys.setprofile."""
        return "trace" if self.lines else "profile"

    def begin(self) -> str:
        """Start tracing. Returns "", or a sentence on why that is impossible."""
        self._set: Any = sys.settrace if self.lines else sys.setprofile
        self._get: Any = sys.gettrace if self.lines else sys.getprofile
        what = "debugger or tracer" if self.lines else "profiler"
        if self._get() is not None:
            return f"the job has a {what} of its own"
        self._attribute = "_trace_hook" if self.lines else "_profile_hook"
        self.on = True
        if self.native:
            self._begin_native(what)
        else:
            self._of_threads(lambda *event: self.new_thread(*event))
            self._set(_Hook(self))
        return ""

    def end(self) -> None:
        """Stop tracing and undo all changes to the interpreter."""
        self.on = False
        if getattr(threading, self._attribute, None) is self._ours:
            setattr(threading, self._attribute, None)
        if self.native:
            self.native.end()
        elif isinstance(self._get(), _Hook):
            self._set(None)

    def new_thread(self, *event: Any) -> Any:
        """Called as profile or trace function by each new thread of `threading`: starts tracing in that thread, while
        tracing is on.
        """
        if self.on:
            self._set(_Hook(self))
        return None

    def step(self, number: int) -> None:
        """Write a step. Also trace this thread again if an exception removed its function; the C module also traces threads
        that C code has made since.
        """
        if self.native and self.on:
            self.native.install()
        elif self.on and self._get() is None:
            self._set(_Hook(self))
            self.report("")
        super().step(number)

    def _begin_native(self, what: str) -> None:
        self.native.begin(self.decide, None, self.mode)
        self._of_threads(self.native.bootstrap())
        others = self.native.install()
        if others:
            self.report(f"{others} threads have a {what} of their own, so they are not traced")

    def _of_threads(self, hook: Any) -> None:
        self._ours: Any = None
        if getattr(threading, self._attribute, None) is None:
            self._ours = hook
            setattr(threading, self._attribute, hook)
        else:
            self.report("the job traces its new threads itself, so they are not traced")


class _Hook:
    """The profile or trace function of one thread. Where it ends while code runs, something else was put in its place."""

    def __init__(self, engine: Profile) -> None:
        self._engine, self._own, self._writer = engine, None, None
        self._kinds = {"call": ring.CALL, "return": ring.RETURN, "line": ring.LINE}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Hook:
        kind, engine = self._kinds.get(event), self._engine
        if kind is None or not engine.on:
            return self
        code = frame.f_code
        name = engine.function_number(code)
        if name < 0:
            return None
        line = code.co_firstlineno if kind == ring.CALL else 0
        if kind == ring.LINE:
            line = frame.f_lineno
        elif kind == ring.RETURN and arg is None and _raises(frame):
            kind = ring.UNWIND
        self._write(engine, name, line, kind)
        return self

    def _write(self, engine: Profile, name: int, line: int, kind: int) -> None:
        writer: Any = engine.writer
        if writer is not self._writer:
            self._writer = writer
            self._own = writer.thread()
        if self._own is not None:
            engine.written(self._own, name, line, kind)

    def __del__(self) -> None:
        try:
            engine, name = self._engine, threading.current_thread().name
            sys._getframe(1)  # none where the thread ends
            if engine.on:
                what = "debugger or tracer" if engine.lines else "profiler"
                engine.report(
                    f"thread {name} has a {what} of its own, or came to the limit of recursion"
                )
        except Exception:  # no frame, or the end of the interpreter
            pass


def _raises(frame: FrameType) -> bool:
    """Does the function end by an exception? Told by its last instruction: only some can return a value."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return not (0 <= at < len(code)) or code[at] not in _RETURNS


def _opcodes() -> frozenset[int]:
    import opcode

    names = (
        "RETURN_VALUE",
        "RETURN_CONST",
        "YIELD_VALUE",
        "YIELD_FROM",
        "SEND",
        "RETURN_GENERATOR",
    )
    return frozenset(opcode.opmap[name] for name in names if name in opcode.opmap)


_RETURNS = _opcodes()


def engine_for(decide: Decide, report: Tell, mode: int, native: Any) -> Monitoring | Profile:
    """The tracing engine for this Python version."""
    kind = Monitoring if sys.version_info >= (3, 12) else Profile
    return kind(decide, report, mode, native)
