"""What py-spy says when it fails, in our words; the outputs are those of py-spy 0.4.3."""

import threading

import pytest

from mldebug.core.errors import ToolError
from mldebug_agents.capture.stacks.pyspy import PySpy, read_dump
from mldebug_agents.system.child.programs import FakeSpawner
from mldebug_agents.system.spawn import Completed

ONE_THREAD = b'[{"pid": 42, "thread_id": 42, "frames": []}]'
STOPPED = b"""Error: Failed to suspend process
Reason: unexpected waitpid result PtraceEvent(Pid(6), SIGSTOP, 128)
"""


def failed(stderr: bytes, **kw: object) -> Completed:
    return Completed(argv=("py-spy",), returncode=1, stderr=stderr, **kw)


@pytest.mark.parametrize(
    ("done", "words", "facts"),
    [
        (failed(b"Permission Denied: Try running again with elevated"), "no permission", {}),
        (
            failed(b"Error: Failed to find python version from target process\n"),
            "not a Python",
            {"not_python": True},
        ),
        (
            failed(b"Error: Failed to get process executable name. Check"),
            "it exited",
            {"gone": True},
        ),
        (failed(b"Error: No such file or directory (os error 2)\n"), "it exited", {"gone": True}),
        (failed(STOPPED), "Failed to suspend process: unexpected waitpid", {}),
        (Completed(timed_out=True), "no answer in 5 s", {"killed": True}),
        (Completed(timed_out=True, abandoned=True), "no answer in 5 s", {"killed": True}),
        (Completed(error="No such file or directory"), "cannot be started: No such file", {}),
        (Completed(error="Permission denied"), "cannot be started: Permission denied", {}),
        (Completed(returncode=-9, truncated=True), "it wrote too much", {}),
        (Completed(returncode=0, stdout=b"[]"), "saw no Python thread", {}),
        (Completed(returncode=0, stdout=b"hello"), "printed something else", {}),
        (Completed(returncode=0, stdout=b""), "printed something else", {}),
    ],
)
def test_failures_are_said_in_words(done: Completed, words: str, facts: dict[str, bool]) -> None:
    dump = read_dump(done, 5.0)

    assert words in dump.failure
    assert {
        name: getattr(dump, name)
        for name in ("not_python", "gone", "killed")
        if getattr(dump, name)
    } == facts


class SlowStarter:
    """Holds every dump until it is told to go on."""

    def __init__(self) -> None:
        self.entered, self.go_on, self.calls = threading.Event(), threading.Event(), 0

    def run(self, argv, *, timeout, max_output=0, env=None, looks_at=None) -> Completed:
        self.calls += 1
        self.entered.set()
        assert self.go_on.wait(10)
        return Completed(returncode=0, stdout=ONE_THREAD)


def test_one_process_is_never_dumped_twice_at_once() -> None:
    starter = SlowStarter()
    pyspy = PySpy(starter, "py-spy")
    first = threading.Thread(target=pyspy.dump, args=(42,))
    first.start()
    assert starter.entered.wait(10)

    second = pyspy.dump(42)
    starter.go_on.set()
    first.join(10)

    assert second.failure == "another dump of this process is still running"
    assert (starter.calls, pyspy.dump(42).failure) == (1, "")


def test_a_stack_that_changed_while_it_was_read_is_read_again() -> None:
    answers = iter(
        [
            failed(b"Error: Failed to call get_stack_trace\n"),
            Completed(returncode=0, stdout=ONE_THREAD),
        ]
    )
    fake = FakeSpawner(lambda argv: next(answers))

    assert PySpy(fake, "py-spy").dump(42).failure == ""
    assert len(fake.calls) == 2


def test_a_binary_that_does_not_run_is_a_missing_tool() -> None:
    class Broken:
        def run(self, argv, *, timeout, max_output=0, env=None, looks_at=None) -> Completed:
            return Completed(error="Permission denied")

    with pytest.raises(ToolError, match="py-spy does not run"):
        PySpy(Broken(), "/nowhere/py-spy").version()
