"""What counts as a step where several optimizers, scalers and frameworks have a word, and whose phases are told."""

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mldebug_training import arm
from mldebug_training.hook import frameworks, phases, process, steps
from mldebug_training.hook.process import OwnProcess
from mldebug_training.hook.steps import Steps
from unit.training.test_hook import python, run, site, variables

__all__ = ["site"]


class FakeRecord:
    """Stands for the record: what was said, in order."""

    def __init__(self) -> None:
        self.explicit = False
        self.beats: list[int] = []
        self.shown: list[int] = []

    def beat(self, step: int) -> None:
        self.beats.append(step)
        self.shown.append(step)

    def correct(self, step: int) -> None:
        self.shown.append(step)


class Optimizer:
    """As PyTorch surrounds its step: also the step of a base class, where it was made before."""

    hook: Steps

    @staticmethod
    def profile_hook_step(func: Any) -> Any:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self, *_ = args
            out = func(*args, **kwargs)
            Optimizer.hook(self, args, kwargs)
            return out

        return wrapper

    def step(self) -> None: ...


class Plain(Optimizer):
    @Optimizer.profile_hook_step
    def step(self) -> None: ...


class Derived(Plain):
    @Optimizer.profile_hook_step
    def step(self) -> None:
        super().step()


class Wrapping(Plain):
    """Another optimizer inside, as Lookahead or SAM have one."""

    def __init__(self) -> None:
        self.inner = Plain()

    @Optimizer.profile_hook_step
    def step(self) -> None:
        self.inner.step()


@pytest.fixture
def record() -> FakeRecord:
    return FakeRecord()


@pytest.fixture
def counted(record: FakeRecord, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The hook as it stands in a training, with a record of ours."""
    one: Any = record
    hook = Steps(one)
    module: Any = ModuleType("torch.optim.optimizer")
    module.Optimizer = Optimizer
    hook.code = steps._code(module)
    assert hook.code is not None
    monkeypatch.setattr(Optimizer, "hook", hook, raising=False)
    monkeypatch.setattr(steps, "steps", hook)
    return hook


# --- optimizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "steps_told"),
    [
        ("aaa", 3),
        ("ababab", 3),
        ("abbabb", 4),  # two of the second for one of the first
        ("aaabaaab", 6),
        ("abcdabcd", 2),
        ("aaabbb", 5),  # made anew half-way: one is lost at most
    ],
)
def test_a_round_of_all_optimizers_is_a_step(
    counted: Steps, record: FakeRecord, order: str, steps_told: int
) -> None:
    optimizers = {name: Plain() for name in "abcd"}
    for name in order:
        optimizers[name].step()
    assert record.beats == list(range(1, steps_told + 1))


def test_a_new_optimizer_goes_on_where_the_old_one_was(counted: Steps, record: FakeRecord) -> None:
    first, second = Plain(), Plain()
    for _ in range(1000):
        first.step()
    for _ in range(5):
        second.step()
    assert record.beats[-4:] == [1001, 1002, 1003, 1004]


@pytest.mark.parametrize("kind", [Derived, Wrapping])
def test_a_step_inside_a_step_counts_once(
    counted: Steps, record: FakeRecord, kind: type[Plain]
) -> None:
    one = kind()
    for _ in range(3):
        one.step()
    assert record.beats == [1, 2, 3]


def test_an_error_in_a_step_leaves_the_count_as_it_was(counted: Steps, record: FakeRecord) -> None:
    class Fails(Plain):
        @Optimizer.profile_hook_step
        def step(self) -> None:
            super().step()
            raise RuntimeError("out of memory")

    fails, fine = Fails(), Derived()
    with pytest.raises(RuntimeError, match="memory"):
        fails.step()
    fine.step()
    fine.step()
    assert record.beats == [1, 2]


# --- scalers and frameworks ----------------------------------------------------------------------


class Scaler:
    def __init__(self) -> None:
        self.overflow = False

    def step(self, optimizer: Plain) -> str:
        if not self.overflow:
            optimizer.step()
        return "result"


def test_a_step_that_overflowed_counts(counted: Steps, record: FakeRecord) -> None:
    module: Any = ModuleType("torch.amp.grad_scaler")
    module.GradScaler = type("GradScaler", (Scaler,), {})
    frameworks.join(module)
    scaler, optimizers = module.GradScaler(), [Plain(), Plain()]
    for overflow in (False, True, True, False):
        scaler.overflow = overflow
        for optimizer in optimizers:
            assert scaler.step(optimizer=optimizer) == "result"
    assert record.beats == [1, 2, 3, 4]


def test_megatrons_optimizer_is_no_optimizer_and_counts(counted: Steps, record: FakeRecord) -> None:
    class Mixed(Scaler):
        def __init__(self) -> None:
            super().__init__()
            self.optimizer = Plain()

        def step(self) -> str:  # type: ignore[override]
            return super().step(self.optimizer)

    class Chained:
        def __init__(self) -> None:
            self.chained_optimizers = [Mixed(), Mixed()]
            self.overflow = False

        def step(self) -> None:
            for one in self.chained_optimizers if not self.overflow else ():
                one.optimizer.step()

    module: Any = ModuleType("megatron.core.optimizer.optimizer")
    module.MixedPrecisionOptimizer, module.ChainedOptimizer = Mixed, Chained
    frameworks.join(module)
    for one in (Mixed(), Chained()):
        for overflow in (False, True, True, False):
            one.overflow = overflow
            one.step()
    assert record.beats == [1, 2, 3, 4, 5, 6, 7]  # the second begins within the round of the first


class Engine:
    """As DeepSpeed's: one step of the optimizer for each of its groups of parameters."""

    def __init__(self) -> None:
        self.global_steps, self.optimizer = 0, Plain()

    def _take_model_step(self, lr_kwargs: Any = None) -> None:
        for _ in range(7):
            self.optimizer.step()
        self.global_steps += 1


@pytest.fixture
def engine(counted: Steps, monkeypatch: pytest.MonkeyPatch) -> Engine:
    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = type("DeepSpeedEngine", (Engine,), {})
    frameworks.join(module)
    one: Engine = module.DeepSpeedEngine()
    return one


def test_deepspeed_counts_for_itself(engine: Engine, record: FakeRecord) -> None:
    engine.global_steps = 5000  # from a checkpoint
    for _ in range(3):
        engine._take_model_step({})
    assert record.beats == [5001, 5002, 5003]


def loop_of(global_step: int) -> Any:
    module: Any = ModuleType("transformers.trainer_callback")

    class CallbackHandler:
        def on_step_end(self, args: Any, state: Any, control: Any) -> Any:
            return control

    module.CallbackHandler = CallbackHandler
    frameworks.join(module)
    handler = CallbackHandler()
    state: Any = type("State", (), {"global_step": global_step})()

    def end() -> None:
        state.global_step += 1
        assert handler.on_step_end(None, state, "control") == "control"

    return end


def test_the_loops_own_number_stands_and_moves_nothing_twice(
    counted: Steps, record: FakeRecord
) -> None:
    end, optimizer = loop_of(100), Plain()
    for _ in range(3):
        optimizer.step()
        end()
    assert record.shown == [1, 101, 102, 103]
    assert len(record.beats) == 3


def test_a_loop_over_deepspeed_with_another_number(engine: Engine, record: FakeRecord) -> None:
    end = loop_of(1)
    for _ in range(4):
        engine._take_model_step()
        end()
    assert record.shown == [1, 2, 2, 3, 3, 4, 4, 5]
    assert len(record.beats) == 4


def test_a_loop_whose_optimizer_nobody_sees_still_moves(counted: Steps, record: FakeRecord) -> None:
    end = loop_of(0)
    end()
    end()
    assert record.beats == [1, 2]


def test_what_the_job_tells_itself_stands(counted: Steps, record: FakeRecord) -> None:
    record.explicit = True
    end, optimizer = loop_of(100), Plain()
    optimizer.step()
    end()
    assert record.shown == []


def test_every_framework_that_is_waited_for_is_known() -> None:
    for full in arm.FRAMEWORKS:
        name = full.removeprefix("lightning.pytorch.").removeprefix("pytorch_lightning.")
        assert name in frameworks.JOIN
        with suppress(AttributeError):  # which nobody sees, see test_training_inert
            frameworks.join(ModuleType(full))


# --- whose phases --------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnProcess]:
    one = OwnProcess(str(tmp_path))
    monkeypatch.setattr(process.stacks, "arm", lambda *_: (0, -1))
    monkeypatch.setattr(phases, "own", one)
    yield one
    one.close()


def saver(wait: threading.Event, begun: threading.Event) -> Any:
    def save(*_: Any) -> None:
        begun.set()
        assert wait.wait(20)

    module: Any = ModuleType("torch.serialization")
    module.save = module.load = save
    phases.watch(module)
    return module


def shown(own: OwnProcess) -> str:
    assert own.record is not None
    return own.record.phase.decode()


def test_a_thread_that_saves_beside_the_training_is_not_told(own: OwnProcess) -> None:
    go_on, begun = threading.Event(), threading.Event()
    module = saver(go_on, begun)
    own.beat(1)
    thread = threading.Thread(target=module.save)
    thread.start()
    assert begun.wait(20)
    assert shown(own) == ""
    go_on.set()
    thread.join()
    module.save()
    assert shown(own) == ""


def test_phases_that_end_in_another_order_leave_none_behind(own: OwnProcess) -> None:
    own.start()
    first, second, third = (own.enter(name) for name in ("compile", "data_wait", "evaluate"))
    assert shown(own) == "evaluate"
    own.leave(second)
    assert shown(own) == "evaluate"
    own.leave(third)
    assert shown(own) == "compile"
    own.leave(first)
    own.leave(first)
    assert shown(own) == ""


def test_phases_of_the_same_name_and_moment_are_two(
    own: OwnProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.time, "monotonic_ns", lambda: 7)
    own.start()
    outer, inner = own.enter("evaluate"), own.enter("evaluate")
    own.leave(outer)
    assert shown(own) == "evaluate"
    own.leave(inner)
    assert shown(own) == ""


def test_a_worker_that_loads_a_sample_makes_no_record(own: OwnProcess) -> None:
    go_on = threading.Event()
    go_on.set()
    module = saver(go_on, threading.Event())
    module.load()
    assert own._record is None
    with phases.Phase("evaluate"):  # said by the job itself: then there is one
        assert shown(own) == "evaluate"


def test_a_forked_worker_loads_in_silence(site: Path) -> None:
    (site / "torch/serialization.py").write_text("def load(): pass\nsave = load\n")
    code = """
        import torch, torch.serialization
        from mldebug_training.hook.process import own
        mine = own.record.path
        read, write = os.pipe()
        if os.fork() == 0:
            torch.serialization.load()
            os.write(write, b"no" if own._record is None else b"yes")
            os._exit(0)
        os.wait()
        tell(has=os.read(read, 10).decode())
    """
    assert run(site, code)["has"] == "no"


def test_a_phase_of_any_name_or_after_the_end_raises_nothing(own: OwnProcess) -> None:
    nonsense: Any = 7
    with phases.Phase(nonsense):
        assert shown(own) == "7"
        assert own._record is not None
        own._record.close()
    own._record = None


def test_a_decorated_function_may_call_itself(own: OwnProcess) -> None:
    @phases.Phase("evaluate")
    def evaluate(depth: int) -> list[str]:
        return [shown(own)] + (evaluate(depth - 1) if depth else [])

    assert evaluate(2) == ["evaluate"] * 3
    assert shown(own) == ""


# --- how processes are started -------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_is_silent_until_it_steps_however_it_was_started(site: Path, method: str) -> None:
    check_child(site, method, sys.executable)


def test_the_newest_python_starts_children_by_a_server(site: Path) -> None:
    check_child(site, "", python("3.14"))


def check_child(site: Path, method: str, interpreter: str) -> None:
    """It has no record before its first step, and one of its own afterwards. No method: the default of this Python."""
    (site / "work.py").write_text(WORK)
    (site / "main.py").write_text(MAIN.format(method=method))
    done = subprocess.run(
        [interpreter, "main.py"], env=variables(site), capture_output=True, text=True,
        timeout=60, check=True, cwd=site,
    )  # fmt: skip
    assert (json.loads(done.stdout), done.stderr) == ([[False, 1, True, True], 0], "")


WORK = """
import os, sys, torch

def work(queue):
    own = sys.modules["mldebug_training.hook.process"].own
    before = own._record is not None
    torch.optim.Optimizer().step()
    queue.put((before, own.record.step, own.record.pid == os.getpid(), own.record.signal > 0))
"""
MAIN = """
import json, multiprocessing, torch, warnings
from work import work

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of fork beside a thread, Python 3.12 and newer
    if {method!r}:
        multiprocessing.set_start_method({method!r})
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=work, args=(queue,))
    child.start(); told = queue.get(timeout=50); child.join()
    print(json.dumps([told, child.exitcode]))
"""
