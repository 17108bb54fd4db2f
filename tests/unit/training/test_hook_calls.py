"""What a job says by calls of its own, whatever it hands over, and the line that brings the hook into a shell's job."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mldebug_training.hook.values import of_scalars, of_step
from unit.training.test_hook import TELL, run, site, variables

__all__ = ["site"]


class Tensor:
    """One that lives on a GPU."""

    def __float__(self) -> float:
        raise AssertionError("nobody may wait for the GPU")

    __int__ = __index__ = __float__  # type: ignore[assignment]


def numpy_like(kind: str) -> Any:
    """A scalar as NumPy makes them."""
    base = type(kind, (), {"__module__": "numpy"})
    own = {"__module__": "numpy", "__float__": lambda _: 2.0, "__int__": lambda _: 2}
    return type("float32", (base,), own)()


class Broken(float):
    def __float__(self) -> float:
        raise RuntimeError("a class of the job")


# --- which values are taken ----------------------------------------------------------------------


def test_scalars_are_numbers_that_can_be_read_at_once() -> None:
    facts = {
        "int": 1, "float": 0.5, "numpy": numpy_like("floating"), "huge": 10**400, "word": "1",
        "tensor": Tensor(), "array": numpy_like("ndarray"), "broken": Broken(1.0),
    }  # fmt: skip
    assert of_scalars(facts) == {"int": 1.0, "float": 0.5, "numpy": 2.0}


def test_a_step_is_a_number_that_a_training_can_reach() -> None:
    assert [of_step(one) for one in (0, 7.0, numpy_like("integer"), 2**53)] == [0, 7, 2, 2**53]
    for wrong in (-1, 2**53 + 1, 2**64, 10**400, float("nan"), float("inf"), "7", None, Tensor()):
        with pytest.raises((ValueError, OverflowError)):
            of_step(wrong)


# --- what comes of it ----------------------------------------------------------------------------


def test_a_step_that_is_none_costs_neither_the_record_nor_what_comes_after(site: Path) -> None:
    code = """
        import torch, mldebug_training
        from mldebug_training.hook.process import own
        from mldebug_training.hook.steps import steps
        mldebug_training.heartbeat(3, loss=1.0)
        for wrong in (2**64, -1, 10**400, "x"):
            mldebug_training.heartbeat(wrong)
        steps.counted(2**70)
        steps.reached(2**70)
        reached, beats = own.record.step, own.record.beats
        with mldebug_training.phase("evaluate"):
            phase = bytes(own.record._memory[88:96]).decode()
        mldebug_training.heartbeat(4, tokens=10**400, lr=0.5)
        count = own.record._memory[120]
        tell(step=[reached, beats, own.record.step], phase=phase, count=count)
    """
    done = run(site, code)
    assert (done["step"], done["phase"], done["count"]) == ([3, 1, 4], "evaluate", 1)
    assert not list(Path(done["record"]).parent.glob(f"{Path(done['record']).name}*"))


def test_optimizers_are_counted_until_a_step_is_told(site: Path) -> None:
    code = """
        import torch, mldebug_training
        from mldebug_training.hook.process import own
        optimizer = torch.optim.Optimizer()
        for wrong in ("x", 2**64, None):
            mldebug_training.heartbeat(wrong)
        optimizer.step()
        optimizer.step()
        counted = own.record.step
        mldebug_training.heartbeat(100)
        optimizer.step()
        tell(steps=[counted, own.record.step])
    """
    assert run(site, code)["steps"] == [2, 100]


def test_a_record_that_cannot_be_written_any_more_is_taken_away_in_silence(site: Path) -> None:
    code = """
        import torch
        from mldebug_training.hook.process import own
        def broken():
            raise OSError("broken")
        own.record.write = broken
        tell()
    """
    done = run(site, code)  # and nothing on stderr
    assert not list(Path(done["record"]).parent.glob(f"{Path(done['record']).name}*"))


def test_where_nobody_can_be_asked_steps_are_told_all_the_same(site: Path) -> None:
    code = """
        import faulthandler, glob, mldebug_training
        del faulthandler.register
        import signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with mldebug_training.phase("evaluate"):
            pass
        mldebug_training.heartbeat(7)
        from mldebug_training.hook.process import own
        left = glob.glob(own.record.path + ".*")
        same = before == signal.pthread_sigmask(signal.SIG_BLOCK, ())
        tell(step=own.record.step, rank=own.record.rank, asked=own.record.signal, left=left, same=same)
    """
    done = run(site, code, RANK="", WORLD_SIZE="")  # so that the signals were not blocked before
    assert (done["step"], done["rank"], done["asked"]) == (7, -1, 0)
    assert (done["left"], done["same"]) == ([], True)


@pytest.mark.parametrize("missing", ["fcntl", "faulthandler"])
def test_a_phase_is_silent_where_the_hook_cannot_be(site: Path, missing: str) -> None:
    code = f"""
        sys.modules["{missing}"] = None
        import mldebug_training
        with mldebug_training.phase("evaluate"):
            inside = True
        @mldebug_training.phase("evaluate")
        def evaluates():
            return 7
        class Name:
            def __str__(self):
                raise RuntimeError("a class of the job")
        with mldebug_training.phase(Name()):
            pass
        mldebug_training.heartbeat(1)
        tell(inside=inside, value=evaluates())
    """
    done = run(site, code)
    assert (done["inside"], done["value"]) == (True, 7)


def test_a_phase_whose_name_is_none_is_no_error(site: Path) -> None:
    code = """
        import mldebug_training
        class Name:
            def __str__(self):
                raise RuntimeError("a class of the job")
        with mldebug_training.phase(Name()):
            tell(inside=True)
    """
    assert run(site, code)["inside"] is True


def test_nothing_is_imported_in_the_middle_of_a_training(site: Path) -> None:
    code = """
        import torch, mldebug_training
        before = set(sys.modules)
        mldebug_training.heartbeat(1, loss=0.5)
        with mldebug_training.phase("evaluate"):
            torch.optim.Optimizer().step()
        tell(imported=sorted(set(sys.modules) - before))
    """
    assert run(site, code)["imported"] == []


COMPILED = """
    import warnings, torch, mldebug_training
    from torch._dynamo.utils import counters
    from mldebug_training.hook.process import OwnProcess, own
    warnings.filterwarnings("error", message=".*does not know how to trace.*")
    told, show = set(), OwnProcess._show
    OwnProcess._show = lambda self, phase: (told.add(phase[0].decode()), show(self, phase))[1]
    own.start()
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    @mldebug_training.phase("decorated")
    def decorated(x):
        return model(x)
    def evaluate(x):
        with mldebug_training.phase("evaluate"):
            y = model(x)
        return decorated(y)
    same = torch.equal(torch.compile(evaluate, backend="eager", fullgraph=True)(x), evaluate(x))
    whole = dict(counters["graph_break"])
    loader = iter(torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
    compiled = torch.compile(lambda: torch.save(model(next(loader)).sum(), os.devnull), backend="eager")
    for _ in range(3):
        compiled()
    tell(same=same, breaks=whole, told=sorted(told))
"""


def test_the_compiler_breaks_no_graph_for_a_phase(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(tmp_path, COMPILED, HOME=str(tmp_path), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert (done["same"], done["breaks"]) == (True, {})
    assert {"checkpoint_save", "data_wait", "evaluate", "decorated"} <= set(done["told"])


# --- the line for a script -----------------------------------------------------------------------


@pytest.mark.parametrize(("own", "text"), [("", "/tmp/my jobs_ 2000"), ("/mine_", "/mine_ 2000")])
def test_the_fifo_of_nccl_is_made_only_if_asked_for_and_where_the_user_wants_it(
    own: str, text: str
) -> None:
    names = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    env = {"PATH": os.environ["PATH"]} | ({names[0]: own} if own else {})
    show = f'echo "${names[0]} ${names[1]}"'
    mldebug = f"{sys.executable} -m mldebug run"
    for script, value in (
        (f'eval "$({mldebug} --print-env)"; {show}', own),
        (f"eval \"$({mldebug} --nccl-pipe '/tmp/my jobs_' --print-env)\"; {show}", text),
        (f"{mldebug} --nccl-pipe '/tmp/my jobs_' -- sh -c '{show}'", text),
    ):
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
        assert (done.stdout.strip(), done.stderr) == (value, "")


def test_the_printed_line_brings_the_hook_into_a_job_of_the_shell(site: Path) -> None:
    """As a Slurm script or a pod has it; what was on the path stays there."""
    code = (
        TELL
        + "import torch\ntell(there=bool(sys.modules['mldebug_training.hook.process'].own.record))\n"
    )
    script = (
        f'eval "$({sys.executable} -m mldebug run --print-env)"; exec {sys.executable} -c "$CODE"'
    )
    env = variables(site, RANK="0", WORLD_SIZE="1") | {"PYTHONPATH": str(site), "CODE": code}
    done = subprocess.run(
        ["sh", "-c", script], env=env, capture_output=True, text=True, timeout=120, check=False, cwd=site
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert '"there": true' in done.stdout
    assert "/dev/shm/mldebug-" in done.stdout
