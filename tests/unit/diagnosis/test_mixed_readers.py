"""Stacks of one job by several readers: py-spy knows the classes of methods (Python 3.11 and later), faulthandler and older Pythons do not."""

from mldebug.capture.frames import comparable
from mldebug.capture.movement import ProcessSample, movement
from mldebug.core.model import Confidence, Frame
from mldebug.diagnosis.diagnose import diagnose
from mldebug.incidents.compare import Change, compare
from shared.diagnosis.builders import capture, frame, moving, process, rank, stack, still

QUALIFIED = (
    "_engine_run_backward (torch/autograd/graph.py:865)",
    "Tensor.backward (torch/_tensor.py:623)",
    "Trainer.forward_backward (train.py:115)",
    "<module> (train.py:140)",
)
BARE = (QUALIFIED[0], "backward (torch/_tensor.py:623)", "forward_backward (train.py:115)", QUALIFIED[3])  # fmt: skip
LOOP = ("evaluate (faults.py:33)", "<module> (train.py:140)")


def test_the_class_of_a_method_parts_no_stacks() -> None:
    qualified, bare = ([frame(one) for one in some] for some in (QUALIFIED, BARE))
    assert comparable(qualified) == comparable(bare)
    assert comparable(bare)[1] == "backward (torch/_tensor.py:623)"


def test_another_line_or_function_does() -> None:
    here = Frame(function="Tensor.backward", file="torch/_tensor.py", line=623)
    for other in (
        Frame(function="backward", file="torch/_tensor.py", line=624),
        Frame(function="backward", file="torch/other.py", line=623),
        Frame(function="Tensor.backwards", file="torch/_tensor.py", line=623),
    ):
        assert comparable([here]) != comparable([other])


def test_a_native_stack_speaks_for_a_rank_whose_stack_another_reader_took() -> None:
    """Seen on a real job: rank 0 stood where ranks 1 and 3 waited, and was named beside the one that looped."""
    spins = {"state": "R", "wchan": "0", "move": still(cpu=1.0)}
    qualified = ("Trainer.step (train.py:24)", "<module> (train.py:60)")
    bare = ("step (train.py:24)", "<module> (train.py:60)")
    native = ("cuStreamSynchronize (libcuda.so)", "at::_ops::item::call (libtorch.so)", *qualified)
    found = diagnose(
        [
            capture(
                rank(0, process(*bare, pid=100, **spins)),
                rank(1, process(*qualified, pid=101, native=native, **spins)),
                rank(2, process(*LOOP, pid=102, state="R", wchan="0", move=moving())),
                rank(3, process(*qualified, pid=103, **spins)),
            )
        ]
    ).diagnosis
    assert ([one.rank for one in found.culprits], found.confidence) == ([2], Confidence.MEDIUM)


def test_looks_by_two_readers_are_no_movement() -> None:
    samples = [
        ProcessSample(0.0, process(*QUALIFIED).state, (stack(*QUALIFIED),)),
        ProcessSample(2.0, process(*BARE).state, (stack(*BARE),)),
    ]
    assert movement(100, samples).same_frames
    elsewhere = ProcessSample(4.0, process(*BARE).state, (stack(*LOOP),))
    assert not movement(100, [*samples, elsewhere]).same_frames


def test_a_later_capture_by_another_reader_tells_no_move() -> None:
    before = capture(rank(0, process(*QUALIFIED, move=moving())))
    after = capture(rank(0, process(*BARE, move=moving())))
    (one,) = compare(before, after)
    assert one.change is not Change.MOVED
