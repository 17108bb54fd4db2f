"""Begins and ends a trace in a process that runs Python 3.14 or later and was started without one: `mldebug trace attach`, `detach`.

Such a Python can be asked to run a file at the next safe point of its main thread (PEP 768, `sys.remote_exec`). Who asks writes into
the process's memory and must be of the same version: so the interpreter that the process itself runs is started to ask, with the
rights of the process's user. The file lies in /dev/shm, written with these rights, too, and does nothing once its time is over.
"""

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean
from mldebug_agents.jobs.hook import request_child
from mldebug_agents.jobs.hook.records import FOLDER, check_owner
from mldebug_agents.jobs.hook.request_child import HookRequestFile
from mldebug_agents.jobs.job_start import hook_folder
from mldebug_agents.system.child.job_paths import NO_RIGHTS, Rights
from mldebug_agents.system.context import Context
from mldebug_agents.system.procfs import Stat
from mldebug_agents.system.reader_answers import FilePiece

ASKING = 10.0  # seconds for the interpreter that asks
LATEST = 1.0  # seconds after the file's time is over in which an answer may still come
PAUSE = 0.05
MAX_OUTPUT, MAX_ANSWER = 64 << 10, 16 << 10  # bytes
LONGEST = 1000  # characters of what a process says
NEEDED = (3, 14)
_PYTHON = re.compile(r"python\d*(\.\d+)?[td]*")
_VERSION = re.compile(r"([0-9]{1,4}) ([0-9]{1,4}) ([0-9]{1,4})")
_SAME = (
    "ns/mnt",
    "ns/pid",
    "ns/time",
    "root",
)  # of a process that sees the same files, pids and clock
ASK = """
import sys
print(*sys.version_info[:3])
try:
    if sys.version_info >= (3, 14):
        sys.remote_exec(int(sys.argv[1]), sys.argv[2])
except BaseException as error:
    print(type(error).__name__, error)
"""
BECOME = """
import ctypes, os, resource, sys
uid, gid, groups, alone = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.setgroups([int(one) for one in groups.split(",") if one])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
if alone:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if ctypes.CDLL(None).prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
    sys.exit("no_new_privs cannot be set")
os.execv(sys.argv[5], sys.argv[5:])
"""
FILE = """# of `mldebug trace`: run once, by Python, in this process's main thread
def _mldebug():
    import _signal, json, os, sys, time
    if time.monotonic() > {deadline!r}:
        return
    faults = {{getattr(_signal, "SIG" + one) for one in ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")}}
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - faults)
    try:
        try:
            if "mldebug_training" not in sys.modules:
                from importlib.util import module_from_spec, spec_from_file_location
                home = {home!r}
                spec = spec_from_file_location(
                    "mldebug_training", home + "/__init__.py", submodule_search_locations=[home]
                )
                sys.modules["mldebug_training"] = module = module_from_spec(spec)
                try:
                    spec.loader.exec_module(module)
                except BaseException:
                    del sys.modules["mldebug_training"]
                    raise
            from mldebug_training.tracing import attach
            answer = attach.{call}
            if time.monotonic() > {deadline!r} + {late!r}:
                attach.{undo}
                return
        except Exception as error:
            answer = dict(why=type(error).__name__ + ": " + str(error))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open({answer!r}, flags, 0o600)
        os.write(file, json.dumps(answer).encode())
        os.close(file)
    except OSError:
        pass
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
_mldebug()
"""


class AttachAnswer(MeasuredData, frozen=True, kw_only=True):
    """Whether a call trace was begun or ended in one process, and if not, why.

    `engine` and `followed`: what traces, and what is traced, in words. `ring`: the path of the file, "" where it is not known or there
    is none (a trace that has just begun makes it later, in /dev/shm where no other place was asked for). `failure`: why it was not done, "" where it was; `missing`: because a right is missing, or its Python cannot do it.
    """

    pid: int
    python: str = ""
    engine: str = ""
    followed: str = ""
    ring: str = ""
    failure: str = ""
    missing: bool = False


class _RefusedError(Exception):
    """Why a process cannot be asked."""

    def __init__(self, why: str, *, missing: bool = True) -> None:
        super().__init__(why)
        self.missing = missing


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What `mldebug_training.tracing.attach` answers, see there."""

    why: str = ""
    engine: str = ""
    followed: str = ""
    ring: str = ""


class _AttachCall(NamedTuple):
    """What the process is to call (see `file_text`), and how it stands with it `otherwise`, in words."""

    words: str
    undo: str
    otherwise: str


class TraceAttacher:
    """Attaches traces to running processes. `python`: the interpreter that asks, "" for the process's own. `patience`: seconds in which
    the process has to reach a safe point.
    """

    def __init__(self, context: Context, python: str = "", patience: float = 10.0) -> None:
        self._host, self._reader, self._spawner = context.host, context.reader, context.spawner
        self._python, self._patience = python, patience

    def attach(self, pid: int, words: dict[str, Any]) -> AttachAnswer:
        """Begin a trace in a process. `words`: the arguments of `mldebug_training.tracing.trace.trace`."""
        call = _AttachCall(f"attach({words!r})", "detach()", "Nothing is traced")
        found = self._carry_out(pid, call)
        return found if found.failure else msgspec.structs.replace(found, ring=words["ring"] or "")

    def detach(self, pid: int) -> AttachAnswer:
        """End the trace of a process; its ring stays."""
        return self._carry_out(pid, _AttachCall("detach()", "detach()", "A trace of it goes on"))

    def _carry_out(self, pid: int, call: _AttachCall) -> AttachAnswer:
        python = ""
        try:
            process = self._process(pid)
            rights = self._rights(process)
            interpreter = self._interpreter(pid)
            name = f"mldebug-{pid}-{process.start_ticks}.attach-{secrets.token_hex(4)}"
            deadline = time.monotonic() + self._patience
            try:
                self._write(pid, rights, name, call, deadline)
                python = self._ask(pid, rights, interpreter, name)
                reply = self._wait(process, rights, name, deadline, call.otherwise)
            finally:
                self._remove(pid, rights, f"{name}.answer")
        except _RefusedError as error:
            failure = clean(str(error), LONGEST)
            return AttachAnswer(pid=pid, python=python, failure=failure, missing=error.missing)
        except MldebugError as error:
            failure = clean(error.message, LONGEST)
            return AttachAnswer(pid=pid, python=python, failure=failure, missing=True)
        if reply.why:
            return AttachAnswer(pid=pid, python=python, failure=clean(reply.why, LONGEST))
        return AttachAnswer(
            pid=pid, python=python, engine=clean(reply.engine, LONGEST),
            followed=clean(reply.followed, LONGEST), ring=clean(reply.ring, LONGEST)
        )  # fmt: skip

    def _process(self, pid: int) -> Stat:
        found = self._host.brief(pid)
        if found is None or found.state in "ZX":
            raise _RefusedError("there is no such process", missing=False)
        return found

    def _rights(self, process: Stat) -> Rights:
        rights = self._host.rights.of_process(process.pid, process.start_ticks)
        if rights == NO_RIGHTS:
            raise _RefusedError("it has changed its user, so nobody is let into it")
        if os.geteuid() not in (0, rights.uid):
            raise _RefusedError(
                f"it is of user {self._host.user(rights.uid)}: ask as that user, or as root"
            )
        for name in _SAME:
            theirs, ours = self._host.link(process.pid, name), self._host.link(os.getpid(), name)
            if not theirs:
                raise _RefusedError("it cannot be looked into: ask as its user, or as root")
            if theirs != ours:
                raise _RefusedError("it runs in a container: call mldebug trace in there")
        return rights

    def _interpreter(self, pid: int) -> str:
        found = _path_of(self._python) if self._python else self._host.link(pid, "exe")
        if self._python or _PYTHON.fullmatch(os.path.basename(found)):
            return found
        name = os.path.basename(found) or "an unknown program"
        raise _RefusedError(
            f"it runs {name}, which is no Python by its name; say --python /path/of/its/python"
        )

    def _write(
        self, pid: int, rights: Rights, name: str, call: _AttachCall, deadline: float
    ) -> None:
        text = file_text(f"{FOLDER}/{name}.answer", call.words, call.undo, deadline)
        order = self._order("write", pid, rights, name)
        data = text.encode()
        if len(data) > request_child.MAX_REQUEST:
            raise _RefusedError("so many words do not fit: name fewer packages", missing=False)
        request_child.place(self._spawner, msgspec.structs.replace(order, data=data))

    def _remove(self, pid: int, rights: Rights, name: str) -> None:
        try:
            request_child.place(self._spawner, self._order("remove", pid, rights, name))
        except (
            MldebugError
        ):  # it has ended; the next process of this user with the hook sweeps it away
            return

    def _order(
        self, verb: Literal["write", "remove"], pid: int, rights: Rights, name: str
    ) -> HookRequestFile:
        return HookRequestFile(verb=verb, root=self._host.root_of(pid), name=name, owner=rights)

    def _ask(self, pid: int, rights: Rights, interpreter: str, name: str) -> str:
        """Returns its version. The file goes where it is sure that the process was not asked to run it: otherwise another user could
        make one of that name in /dev/shm.
        """
        words = [interpreter, "-I", "-S", "-c", ASK, str(pid), f"{FOLDER}/{name}"]
        became = as_user(rights, alone=not self._python)  # a program in its place may be a script
        done = self._spawner.run(
            [*became, *words], timeout=ASKING, max_output=MAX_OUTPUT, env={}, looks_at=pid
        )
        version, _, trouble = done.stdout.decode(errors="replace").strip().partition("\n")
        match = _VERSION.fullmatch(version)
        numbers = tuple(map(int, match.groups())) if match else ()
        python = ".".join(map(str, numbers))
        if numbers >= NEEDED and not trouble:
            return python
        if not (done.error or done.timed_out or done.truncated):
            self._remove(pid, rights, name)
        if not numbers:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise _RefusedError(
                f"{interpreter} did not start: {(done.error or ' '.join(last))[:200]}"
            )
        if numbers < NEEDED:
            raise _RefusedError(f"it runs Python {python}; only 3.14 and later can be attached to")
        raise _RefusedError(self._words_of(trouble))

    def _wait(
        self, process: Stat, rights: Rights, name: str, deadline: float, otherwise: str
    ) -> _Reply:
        path = f"{self._host.root_of(process.pid)}{FOLDER}/{name}.answer"
        while time.monotonic() < deadline + LATEST:
            time.sleep(PAUSE)
            reply = self._reply(path, rights)
            if reply is not None:
                self._remove(process.pid, rights, name)
                return reply
            now = self._host.brief(process.pid)
            if now is None or now.state in "ZX" or now.start_ticks != process.start_ticks:
                raise _RefusedError("it ended meanwhile", missing=False)
        raise _RefusedError(  # the file stays until the process has ended: Python would complain where it is gone
            f"its main thread reached no safe point in {self._patience:g} s: it is in C code, or stopped. {otherwise}, "
            f"also when it goes on later. Where it is: mldebug dump",
            missing=False,
        )

    def _reply(self, path: str, rights: Rights) -> _Reply | None:
        piece = self._reader.read_from(path, 0, rights=rights, max_bytes=MAX_ANSWER)
        if not isinstance(piece, FilePiece):
            return None
        try:
            check_owner(piece, rights.uid)
            return msgspec.json.decode(piece.data, type=_Reply)
        except (ValueError, RecursionError, msgspec.MsgspecError):  # half of it, or nonsense
            return None

    def _words_of(self, trouble: str) -> str:
        if "not enabled" in trouble:
            return "it refuses: PYTHON_DISABLE_REMOTE_DEBUG is set, or -X disable-remote-debug"
        denied = trouble.startswith("PermissionError") or "not permitted" in trouble.lower()
        if denied and self._host.node_text("sys/kernel/yama/ptrace_scope").strip() not in ("", "0"):
            return "the kernel lets no process of this user into another: kernel.yama.ptrace_scope is not 0"
        return trouble.partition("\n")[0][:200]


def file_text(answer: str, call: str, undo: str, deadline: float) -> str:
    """What the process runs: `call`, of `mldebug_training.tracing.attach`, whose answer goes to a new file at the path `answer`. Nothing
    after `deadline` (monotonic seconds); where the call has taken too long to be believed, `undo` is called and nothing answered.
    """
    home = str(hook_folder().parent)
    return FILE.format(
        deadline=deadline, late=LATEST / 2, home=home, call=call, undo=undo, answer=answer
    )


def _path_of(python: str) -> str:
    """The program that this word names in a shell here: it is started in another folder."""
    return os.path.abspath(shutil.which(python) or python)


def as_user(rights: Rights, *, alone: bool) -> Sequence[str]:
    """The words to put before a command so that it runs with these rights when this process is root's; empty otherwise, and for root.

    The command can gain no rights by a setuid program. `alone`: it can start no process either, since that one would remain, outside
    of the job's control group.
    """
    if os.geteuid() != 0 or rights.uid == 0:
        return ()
    groups = ",".join(map(str, rights.groups))
    return (
        sys.executable, "-I", "-S", "-c", BECOME,
        str(rights.uid), str(rights.gid), groups, "alone" if alone else "",
    )  # fmt: skip
