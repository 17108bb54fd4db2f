"""The table of frameworks' waits: what its rows say, and that the sources have them."""

import sysconfig
from pathlib import Path

import pytest

from mldebug.capture.packages import FRAMEWORKS, Owner, owner
from mldebug.core.model import Classification, ProcessCapture
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.diagnosis.classify.tables.package_waits import KINDS, PACKAGE_WAITS, PackageWait
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import capture, process, rank, stack, still
from shared.diagnosis.packagecallers import unknown_waits
from shared.diagnosis.packagewaits import missing

INSTALLED = Path(sysconfig.get_path("purelib"))
OWN = ("step (train.py:30)", "<module> (train.py:50)")


def class_of(what: ProcessCapture) -> Classification:
    return classify(rank(0, what))


@pytest.mark.parametrize("wait", PACKAGE_WAITS, ids=lambda one: f"{one.file}:{one.functions[0]}")
def test_a_row_is_in_the_sources_that_are_here(wait: PackageWait) -> None:
    if not (INSTALLED / wait.file.partition("/")[0]).is_dir():
        pytest.skip(
            f"{wait.package} is not installed: python tests/shared/diagnosis/packagewaits.py FOLDER"
        )
    assert missing(wait, INSTALLED) == []


def test_a_function_that_the_sources_do_not_have_is_found(tmp_path: Path) -> None:
    """The check can fail: by a file, and by a function in it. What newer versions lack is not looked for."""
    wait = next(one for one in PACKAGE_WAITS if not one.gone and len(one.functions) > 1)
    assert missing(wait, tmp_path) == [wait.file]
    (tmp_path / wait.file).parent.mkdir(parents=True)
    (tmp_path / wait.file).write_text(f"def {wait.functions[0]}():\n    pass\n")
    assert missing(wait, tmp_path) == list(wait.functions[1:])
    assert missing(next(one for one in PACKAGE_WAITS if one.gone), tmp_path) == []


def test_what_newer_versions_lack_was_read_in_older_ones() -> None:
    """Of each package that has such a row, another row names a newer version."""

    def newest(wait: PackageWait) -> tuple[int, ...]:
        return max(tuple(int(n) for n in one.split(".")) for one in wait.read.split(", ") if one[0].isdigit() and "." in one)  # fmt: skip

    for wait in (one for one in PACKAGE_WAITS if one.gone):
        others = [newest(one) for one in PACKAGE_WAITS if one.package == wait.package and not one.gone]  # fmt: skip
        assert newest(wait) < max(others), wait.file


@pytest.mark.parametrize("wait", PACKAGE_WAITS, ids=lambda one: f"{one.file}:{one.functions[0]}")
def test_each_function_is_classified_and_the_place_is_the_jobs(wait: PackageWait) -> None:
    name, role, _ = KINDS[wait.kind]
    for function in wait.functions:
        found = class_of(
            process(f"{function} ({wait.file}:7)", *OWN, state="", active=role == "busy")
        )
        assert (found.name, found.role, found.site) == (name, role, OWN[0]), function
        assert found.operation == (wait.operation or function)


def test_a_row_is_of_a_package_that_is_no_code_of_the_job() -> None:
    for wait in PACKAGE_WAITS:
        assert owner("", wait.file) in (Owner.FRAMEWORK, Owner.LIBRARY), wait.file


def test_what_a_frameworks_function_calls_is_not_taken_for_its_own_wait() -> None:
    inside = ("__getitem__ (data.py:4)", "fetch_sub_module (deepspeed/runtime/zero/partitioned_param_coordinator.py:386)")  # fmt: skip
    found = class_of(process(*inside, *OWN, wchan="hrtimer_nanosleep", move=still()))

    assert (found.name, found.site) == ("sleep", "__getitem__ (data.py:4)")


def test_a_line_that_holds_the_gil_does_not_block() -> None:
    top = "has_overflow (deepspeed/runtime/zero/stage3.py:2400)"
    found = class_of(process(top, *OWN, state="R", wchan="0", gil=True, move=still(cpu=1.0)))

    assert (found.name, found.role) == ("busy", "busy")


@pytest.mark.parametrize(
    "caller",
    [
        "barrier (ray/train/v2/_internal/execution/collective_impl.py:22)",
        "broadcast_from_rank_zero (ray/train/v2/_internal/execution/collective_impl.py:55)",
        "_sync_checkpoint_dir_name_across_ranks (ray/train/v2/_internal/execution/context.py:254)",
        "barrier (ray/train/collective/collectives.py:80)",
    ],
)
def test_a_wait_for_an_actor_that_waits_for_all_ranks_is_a_wait_for_them(caller: str) -> None:
    """Ray Train keeps its ranks in step by an actor, so each of them waits in `ray.get`."""
    get = ("get_objects (ray/_private/worker.py:960)", "get (ray/_private/worker.py:2900)")
    found = class_of(process(*get, caller, *OWN, wchan="futex_wait_queue", move=still()))
    other = class_of(process(*get, "fetch (job.py:4)", *OWN, wchan="futex_wait_queue", move=still()))  # fmt: skip

    assert (found.name, found.role) == ("collective", "waiting")
    assert (other.name, other.role) == ("future", "inert")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_known_by_every_form_of_its_path(name: str) -> None:
    file = f"{name}/deep/inside.py"
    root = name.partition("/")[0]
    paths = (f"/opt/conda/lib/python3.11/site-packages/{file}", f"/usr/lib/python3/dist-packages/{file}", f"/work/{root}/{file}", f"/work/{root}/src/{file}")  # fmt: skip

    assert owner("", file) is Owner.FRAMEWORK
    assert [owner(path, "inside.py") for path in paths] == [Owner.FRAMEWORK] * 4


@pytest.mark.parametrize(
    ("path", "file", "whose"),
    [
        ("", "train.py", Owner.JOB),
        ("", "datasets/coco.py", Owner.JOB),
        ("/home/u/project/datasets/coco.py", "datasets/coco.py", Owner.JOB),
        ("/opt/conda/lib/python3.11/site-packages/datasets/arrow_dataset.py", "datasets/arrow_dataset.py", Owner.INSTALLED),
        ("", "rayleigh/train.py", Owner.JOB),
        ("", "megatron/training/training.py", Owner.JOB),
        ("/home/u/ray/experiments/train.py", "train.py", Owner.JOB),
        ("/home/u/transformers/examples/run_clm.py", "run_clm.py", Owner.JOB),
        ("/opt/conda/lib/python3.11/site-packages/ourlib/train.py", "ourlib/train.py", Owner.INSTALLED),
        ("/usr/local/bin/torchrun", "torchrun", Owner.FRAMEWORK),
        ("/tmp/torchinductor_u/ab/cab.py", "cab.py", Owner.LIBRARY),
        ("/usr/lib/python3.11/threading.py", "threading.py", Owner.LIBRARY),
        ("/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", "module.py", Owner.LIBRARY),
    ],
)  # fmt: skip
def test_whose_code_a_file_is(path: str, file: str, whose: Owner) -> None:
    assert owner(path, file) is whose


def test_a_recipe_of_a_framework_has_a_place_too() -> None:
    """Nobody's own line anywhere: the innermost of the framework stands in for it, and waits are known all the same."""
    frames = ("_dist_reduce (torchtitan/distributed/utils.py:60)", "train_step (torchtitan/trainer.py:500)", "<module> (torchtitan/train.py:9)")  # fmt: skip
    found = class_of(process(*frames, state="", active=True))

    assert (found.name, found.site) == ("device_sync", frames[0])


# --- native code of no library of communication ---------------------------------------------------


def blocked_in(*native: str) -> ProcessCapture:
    return process(*OWN, native=(*native, *OWN), move=still())


def test_an_extensions_own_queue_is_what_the_others_wait_for() -> None:
    waiter = process("all_reduce (torch/distributed/distributed_c10d.py:3252)", *OWN)
    own = blocked_in("pthread_cond_wait (libc.so.6)", "tokens::Queue::pop (_fasttok.cpython-311-x86_64-linux-gnu.so)")  # fmt: skip
    found = diagnose([capture(*[rank(n, own if n == 2 else waiter) for n in range(4)])]).diagnosis

    assert (str(found.verdict), [one.rank for one in found.culprits]) == ("rank_waiting", [2])
    assert "tokens::Queue::pop, _fasttok" in found.summary


@pytest.mark.parametrize(
    "frames",
    [
        ("pthread_cond_wait (libc.so.6)", "ncclGroupEnd (libnccl.so.2)"),
        ("pthread_cond_wait (libc.so.6)", "PMPI_Allreduce (libmpi.so.40)"),
        ("pthread_cond_wait (libc.so.6)", "horovod::common::Wait (mpi_lib_v2.cpython-311.so)"),
        ("pthread_cond_wait (libc.so.6)", "at::native::copy_ (libtorch_cpu.so)"),
        ("pthread_cond_wait (libc.so.6)", "0x7f0011223344 (_fasttok.so)"),
        ("pthread_cond_wait (libc.so.6)",),
    ],
)
def test_what_may_wait_for_others_is_not_blamed(frames: tuple[str, ...]) -> None:
    assert class_of(blocked_in(*frames)).name != "native_lock"


# --- training in a thread ---------------------------------------------------------------------------

LOADS = ("wait (multiprocessing/connection.py:931)", "_try_get_data (torch/utils/data/dataloader.py:1133)", "fit (train.py:7)")  # fmt: skip


def test_a_main_thread_that_only_looks_has_its_trainers_dataloader() -> None:
    """`while thread.is_alive(): time.sleep(0.3)`, as many own launchers do."""
    trainer = stack(*LOADS, tid=200, name="trainer")
    polls = process("main (train.py:40)", wchan="hrtimer_nanosleep", others=(trainer,), move=still(switches=9))  # fmt: skip
    found = class_of(polls)

    assert (found.name, found.site) == ("dataloader", "fit (train.py:7)")
    assert "in its thread trainer" in found.doing


def test_a_main_thread_that_sleeps_in_one_call_is_not_excused_by_a_thread_that_loads() -> None:
    loads = stack(*LOADS, tid=200, name="prefetch")
    found = class_of(process("main (train.py:40)", wchan="hrtimer_nanosleep", others=(loads,), move=still()))  # fmt: skip

    assert (found.name, found.site) == ("sleep", "main (train.py:40)")


def test_of_two_threads_that_train_neither_speaks_for_the_rank() -> None:
    both = tuple(stack("all_reduce (torch/distributed/distributed_c10d.py:1)", f"run_{n} (pool.py:4)", tid=200 + n, name=f"t{n}") for n in range(2))  # fmt: skip
    main = process("join (threading.py:9)", "main (train.py:3)", others=both, move=still())

    assert class_of(main).site != "run_0 (pool.py:4)" or class_of(main).thread


def test_main_that_trains_is_not_left_for_a_thread_that_does_so_too() -> None:
    other = stack("all_reduce (torch/distributed/distributed_c10d.py:1)", "push (pool.py:4)", tid=200, name="comm")  # fmt: skip
    found = class_of(
        process("load (train.py:7)", wchan="hrtimer_nanosleep", others=(other,), move=still())
    )

    assert (found.name, found.site) == ("sleep", "load (train.py:7)")


def test_no_function_of_the_packages_that_are_here_waits_unknown() -> None:
    assert [one for one in unknown_waits(INSTALLED) if not one.file.startswith("vllm/")] == []


def test_a_function_that_waits_in_its_own_line_is_found(tmp_path: Path) -> None:
    file = tmp_path / "trl" / "new.py"
    file.parent.mkdir()
    file.write_text(
        "def agree(flag):\n    dist.all_reduce(flag)\n    return flag.item()\n"
        "def alone(flag):\n    return flag.item()\n"
        "def finish(handle):\n    handle.wait()\n"
        "def calls(flag):\n    dist.barrier()\n"
    )
    assert [(one.function, one.kind) for one in unknown_waits(tmp_path)] == [("agree", "device"), ("finish", "handle")]  # fmt: skip


@pytest.mark.parametrize(
    "frame",
    [
        "send_to_device (accelerate/utils/operations.py:150)",
        "_prepare_input (transformers/trainer.py:2384)",
        "batch_to (lightning/fabric/utilities/apply_func.py:104)",
    ],
)
def test_who_copies_a_batch_to_its_gpu_is_named_by_no_more_than_one_sign(frame: str) -> None:
    """It blocks where the GPU is still in an earlier collective. A control: who sleeps in a line of its own is named as before."""
    others = tuple(rank(n, process("all_reduce (torch/distributed/distributed_c10d.py:2806)", *OWN)) for n in (0, 2, 3))  # fmt: skip
    copies = diagnose(
        (capture(*others, rank(1, process(frame, *OWN, wchan="", state=""))),)
    ).diagnosis
    assert not copies.culprits or copies.confidence == "low"
    sleeps = diagnose(
        (capture(*others, rank(1, process("slow_read (data.py:9)", *OWN, wchan="", state=""))),)
    ).diagnosis
    assert [one.rank for one in sleeps.culprits] == [1]
