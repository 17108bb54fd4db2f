"""From py-spy's counted stacks to the shares of one rank's time."""

from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from mldebug.capture.folded_stacks import parse_folded
from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.rank_shares import in_proportion, is_by_main_thread, rank_shares
from mldebug_agents.system.host import Host
from mldebug_agents.watch import wait_sampler
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler

FOLDED = Path(__file__).parents[2] / "fixtures/folded"
MAIN = "thread (70): MainThread;<module> (train.py:20)"
BACKWARD = "Tensor.backward (torch/_tensor.py:600);backward (torch/autograd/__init__.py:395);_engine_run_backward (torch/autograd/graph.py:979)"


def shares(every: str, on_cpu: str = "") -> RankShares | None:
    return rank_shares(3, 70, parse_folded(every), parse_folded(on_cpu))


def test_a_recording_of_a_real_gloo_rank_is_read() -> None:
    """Rank 1 of four slept 0.05 s more than the others before each step."""
    found = [
        rank_shares(rank, pid, *(parse_folded((FOLDED / f"{kind}-{rank}.txt").read_text()) for kind in ("all", "cpu")))
        for rank, pid in ((0, 29818), (1, 29819))
    ]  # fmt: skip
    quick, slow = found
    assert quick is not None
    assert slow is not None
    assert (quick.samples, slow.samples) == (99, 99)
    assert (round(quick.waiting, 2), round(slow.waiting, 2)) == (0.24, 0.02)
    assert round(slow.places["extra_work (train.py)"], 2) == 0.25
    assert slow.asleep["extra_work (train.py)"] > 0.2
    assert slow.lines == {"fetch (train.py)": 7, "extra_work (train.py)": 10} | slow.lines


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ("wrapper (torch/distributed/c10d_logger.py:83);all_reduce (torch/distributed/distributed_c10d.py:2810)", "waiting"),
        ("synchronize (torch/cuda/__init__.py:1040)", "on_gpu"),
        ("wrapper (torch/distributed/c10d_logger.py:83);recv (torch/distributed/distributed_c10d.py:2500)", "exchanging"),
        ("__next__ (torch/utils/data/dataloader.py:700);_next_data (torch/utils/data/dataloader.py:1400);_try_get_data (torch/utils/data/dataloader.py:1200);get (queue.py:180)", "loading"),
        (BACKWARD, "waiting"),
        ("forward (model.py:7)", "model"),
    ],
)  # fmt: skip
def test_each_kind_of_call_counts_as_what_it_is(calls: str, kind: str) -> None:
    found = shares(f"{MAIN};step (train.py:9);{calls} 10\n")
    assert found is not None
    assert found.waiting == (kind in ("waiting", "exchanging", "on_gpu"))
    shown = (found.exchanging, found.loading, found.on_gpu)
    assert shown == tuple(kind == one for one in ("exchanging", "loading", "on_gpu"))
    assert found.places == ({"forward (model.py)": 1.0} if kind == "model" else {})


def test_backward_on_a_cpu_is_work() -> None:
    every = f"{MAIN};step (train.py:9);{BACKWARD} 10\n"
    found = shares(every, f"{MAIN};step (train.py:9);{BACKWARD} 7\n")
    assert found is not None
    assert (found.waiting, found.places) == (0.3, {"loss.backward()": 0.7})
    assert found.idle_waiting == 0.3
    more = shares(every, f"{MAIN};step (train.py:9);{BACKWARD} 12\n")
    assert more is not None
    assert more.waiting == 0.0


def test_who_spins_as_it_waits_does_not_idle() -> None:
    line = f"{MAIN};step (train.py:9);all_reduce (torch/distributed/distributed_c10d.py:2810)"
    found = shares(f"{line} 10\n", f"{line} 8\n")
    assert found is not None
    assert (found.waiting, found.idle_waiting) == (1.0, 0.2)


def test_the_thread_that_trains_speaks_for_the_process() -> None:
    text = (
        "thread (70): MainThread;<module> (run.py:3);join (threading.py:1119);_wait_for_tstate_lock (threading.py:1139) 50\n"
        "thread (71): train;run (threading.py:982);loop (train.py:8);all_reduce (torch/distributed/distributed_c10d.py:2810) 20\n"
        "thread (71): train;run (threading.py:982);loop (train.py:9) 30\n"
    )
    found = shares(text)
    assert found is not None
    assert (found.samples, found.waiting, found.places) == (50, 0.4, {"loop (train.py)": 0.6})


@pytest.mark.parametrize("text", ["", "py-spy> Sampling process 20 times a second for 5 seconds.\n\n", "x" * 100_000, "thread (70): MainThread;f (a.py:1) \n", "thread (0x): M;f (a.py:1) 99999999999999\n"])  # fmt: skip
def test_output_without_stacks_gives_nothing(text: str) -> None:
    assert shares(text) is None


def test_lines_of_a_module_stand_apart() -> None:
    found = shares(f"{MAIN} 4\nthread (70): MainThread;<module> (train.py:30) 6\n")
    assert found is not None
    assert found.places == {"train.py:30": 0.6, "train.py:20": 0.4}


def test_the_samples_on_a_cpu_of_a_thread_that_is_there_nearly_never_or_always() -> None:
    stacks = parse_folded(f"{MAIN};step (train.py:9) 90\n{MAIN};wait (train.py:8) 9\n")
    assert [one.count for one in in_proportion(stacks, 0.98)] == [88, 9]
    assert [one.count for one in in_proportion(stacks, 0.02)] == [2], "no stack without samples"
    assert in_proportion(stacks, 0.0) == ()


def test_whether_it_is_the_main_thread_that_trains() -> None:
    here = f"{MAIN};step (train.py:9) 90\n"
    assert is_by_main_thread(parse_folded(here), 70)
    join = f"{MAIN};join (threading.py:1100) 99\n"
    trains = "thread (71): Thread-1;run (train.py:9);_engine_run_backward (torch/autograd/graph.py:979) 99\n"
    assert not is_by_main_thread(parse_folded(join + trains), 70)
    assert not is_by_main_thread((), 70)


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ((0.2, 0.2), ["all", "cpu", "all"]),
        ((9.9, 9.9), ["all", "cpu", "all"]),
        ((4.0, 4.0), ["all", "cpu", "all", "cpu"]),
        ((0.2, 4.0, 0.2), ["all", "cpu", "all", "all", "cpu"]),
    ],
    ids=["nearly never", "nearly always", "in between", "changed"],
)
def test_who_is_on_a_cpu_is_counted_only_where_that_is_not_known_before(tmp_path: Path, wanted: tuple[float, ...], kinds: list[str]) -> None:  # fmt: skip
    """`wanted`: seconds of a CPU that the rank wants during each stretch; the clock goes on by ten."""
    orders: list[str] = []

    def record(*_: object, on_cpu: bool = False) -> object:
        orders.append("cpu" if on_cpu else "all")
        return parse_folded(f"{MAIN};step (train.py:9) 100\n")

    folder = tmp_path / "proc/70"
    (folder / "task/70").mkdir(parents=True)
    (folder / "stat").write_text("70 (python) S" + " 0" * 49)
    tools = Mock()
    tools.context.host, tools.pyspy.record = Host(str(tmp_path)), record
    tools.context.host.open_gpus = lambda _: ()
    rank = RankIdentity(rank=0, world_size=1, pid=70)
    job = Job(id="j", name="t.py", launcher="torchrun", world_size=1, ranks=(rank,))
    sampler, spent = WaitSampler(tools), 0.0
    for seconds in wanted:
        counters = iter([spent, spent + seconds])
        spent += seconds
        clock = iter(range(0, 1000, 10))
        with (
            patch.object(sampler, "_wanted", lambda _, found=counters: next(found)),
            patch.object(wait_sampler, "time", Mock(monotonic=lambda found=clock: next(found))),
        ):
            sampler.take(SampleOrder(job, seconds=0))
    assert sorted(orders) == sorted(kinds)
