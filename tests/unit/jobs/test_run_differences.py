"""What differs between two runs: all that was planted is found, and nothing is invented."""

import random

import msgspec
import pytest

from mldebug.jobs.run_records.differences import Difference, Subject, compare_runs
from mldebug.jobs.run_records.model import NOT_SET, RunFigures, RunRecord
from mldebug.jobs.run_records.recorded_settings import (
    LONGEST,
    MOST,
    MOST_TOGETHER,
    MOST_WORDS,
    explaining,
    options_of,
    package_versions,
    recorded_arguments,
    recorded_environment,
)

RUN = RunRecord(
    run="a",
    name="train",
    user="alice",
    script="train.py",
    launcher="torchrun",
    world_size=8,
    nodes="node[1-2]",
    started_at=1_795_240_000.0,
    outcome="exit 0",
    is_over=True,
    arguments=("python3", "-u", "train.py", "--lr", "3e-4", "--data=/data/a", "optim.beta=0.9"),
    directory="/home/alice/code",
    environment={"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "8"},
    packages={"torch": "2.8.0", "nccl": "2.27.3", "numpy": "2.1.0"},
    code={"commit": "0123456789ab", "script": "sha256 00112233aabb"},
    machine={"kernel": "6.8.0", "cores": "192", "GPUs": "8 x H100", "driver": "570.1"},
)


def figures(
    *, seconds: float = 0.5, level: float = 2.0, batch: float = 32.0, noise: float = 0.01, seed: int = 1, rows: int = 60, logged: bool = True
) -> RunFigures:  # fmt: skip
    """A run's figures: a step each `seconds`, a falling loss that ends at `level`; with natural noise."""
    dice = random.Random(seed)
    steps = tuple(20 * number for number in range(1, rows + 1))
    times = tuple(1000.0 + step * seconds * dice.gauss(1.0, 0.0005) for step in steps)
    losses = tuple(level + 3.0 / (1 + step / 100) + dice.gauss(0, noise) for step in steps)
    columns: dict[str, tuple[float | None, ...]] = {"loss": losses, "batch_size": (batch,) * rows}
    if logged:
        columns["step_seconds"] = tuple(seconds * dice.gauss(1.0, 0.02) for _ in steps)
    return RunFigures(times=times, steps=steps, columns=columns)


PLANTED = {
    "commit": ({"code": RUN.code | {"commit": "ba9876543210"}}, Subject.CODE, "commit"),
    "script": ({"code": RUN.code | {"script": "sha256 ffff"}}, Subject.CODE, "script"),
    "option": ({"arguments": (*RUN.arguments[:4], "1e-3", *RUN.arguments[5:])}, Subject.ARGUMENTS, "--lr"),
    "data": ({"arguments": (*RUN.arguments[:5], "--data=/data/b", RUN.arguments[6])}, Subject.ARGUMENTS, "--data"),
    "package": ({"packages": RUN.packages | {"torch": "2.9.1"}}, Subject.PACKAGES, "torch"),
    "package gone": ({"packages": {"torch": "2.8.0", "nccl": "2.27.3"}}, Subject.PACKAGES, "numpy"),
    "variable": ({"environment": RUN.environment | {"NCCL_ALGO": "Tree"}}, Subject.ENVIRONMENT, "NCCL_ALGO"),
    "variable came": ({"environment": RUN.environment | {"NCCL_P2P_DISABLE": "1"}}, Subject.ENVIRONMENT, "NCCL_P2P_DISABLE"),
    "ranks": ({"world_size": 16}, Subject.SIZE, "ranks"),
    "nodes": ({"nodes": "node[1,3]"}, Subject.NODES, "only in this run"),
    "driver": ({"machine": RUN.machine | {"driver": "580.2"}}, Subject.MACHINE, "driver"),
    "end": ({"outcome": "killed by SIGKILL (9)"}, Subject.OUTCOME, "end"),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_each_planted_difference_is_found_alone(planted: str) -> None:
    change, subject, name = PLANTED[planted]
    other = msgspec.structs.replace(RUN, run="b", **change)
    found = compare_runs(RUN, other, (figures(seed=1), figures(seed=2)))
    assert [(one.subject, one.name) for one in found.differences] == [(subject, name)]
    back = compare_runs(other, RUN, (figures(seed=1), figures(seed=2)))
    assert [(one.before, one.after) for one in back.differences] == [
        (one.after, one.before) for one in found.differences
    ]


def test_ten_at_once_are_found_and_none_is_invented() -> None:
    ten = ("commit", "option", "package gone", "variable", "variable came", "ranks", "nodes", "driver")  # fmt: skip
    changes: dict[str, object] = {}
    for one in ten:
        changes |= PLANTED[one][0]
    changes["environment"] = {"NCCL_ALGO": "Tree", "NCCL_P2P_DISABLE": "1", "OMP_NUM_THREADS": "8"}
    other = msgspec.structs.replace(RUN, run="b", **changes)
    found = compare_runs(RUN, other, (figures(seed=3), figures(seed=4, seconds=0.65, batch=64.0)))
    names = [(one.subject, one.name) for one in found.differences]
    wanted = {(PLANTED[one][1], PLANTED[one][2]) for one in ten}
    wanted |= {(Subject.SPEED, "seconds a step"), (Subject.SIZE, "batch size")}
    assert len(wanted) == 10
    assert set(names) == wanted
    assert len(names) == len(wanted)
    assert [one.subject for one in found.differences] == sorted(
        (one.subject for one in found.differences), key=tuple(Subject).index
    )
    (speed,) = (one for one in found.differences if one.subject is Subject.SPEED)
    assert float(speed.after.split()[0]) == pytest.approx(0.65, rel=0.05)


@pytest.mark.parametrize("logged", [True, False], ids=["logged", "by the steps"])
def test_noise_is_no_difference_and_a_tenth_slower_is_one(logged: bool) -> None:
    for seed in range(40):
        calm = compare_runs(
            RUN,
            msgspec.structs.replace(RUN, run="b"),
            (figures(seed=seed, logged=logged), figures(seed=seed + 1000, logged=logged)),
        )
        assert calm.differences == (), seed
        slow = compare_runs(
            RUN, msgspec.structs.replace(RUN, run="b"),
            (figures(seed=seed, logged=logged), figures(seed=seed + 1000, logged=logged, seconds=0.55)),
        )  # fmt: skip
        assert [one.subject for one in slow.differences] == [Subject.SPEED], seed


def test_a_loss_that_lies_apart_is_told_at_the_last_common_step() -> None:
    for seed in range(20):
        longer = figures(seed=seed + 50, level=2.2, rows=90)
        found = compare_runs(RUN, msgspec.structs.replace(RUN, run="b"), (figures(seed=seed), longer))  # fmt: skip
        (only,) = found.differences
        assert (only.subject, only.name) == (Subject.LOSS, "at step 1,200"), seed
        assert float(only.after) > float(only.before)


def test_a_noisy_loss_is_not_told_apart() -> None:
    for seed in range(40):
        pair = figures(seed=seed, noise=0.3), figures(seed=seed + 500, noise=0.3)
        found = compare_runs(RUN, msgspec.structs.replace(RUN, run="b"), pair)
        assert found.differences == (), seed


def test_what_one_of_them_lacks_is_no_difference_but_said() -> None:
    bare = RunRecord(run="b", world_size=8, launcher="torchrun", nodes="node[1-2]")
    found = compare_runs(RUN, bare)
    assert found.differences == ()
    assert set(found.not_compared) == {
        "code: not known of b",
        "arguments: not known of b",
        "packages: not known of b",
        "environment: not known of b",
        "machine: not known of b",
        "speed and loss: no history of training figures is kept of one of them",
    }


@pytest.mark.parametrize(
    ("table", "gone"),
    [("code", "commit"), ("code", "script"), ("machine", "driver"), ("packages", "nccl"), ("packages", "torch")],
)  # fmt: skip
def test_a_fact_that_could_not_be_read_is_no_difference(table: str, gone: str) -> None:
    less = {name: value for name, value in getattr(RUN, table).items() if name != gone}
    other = msgspec.structs.replace(RUN, run="b", **{table: less})
    for before, after in ((RUN, other), (other, RUN)):
        found = compare_runs(before, after)
        assert found.differences == ()
        assert f"{gone}: not known of b" in found.not_compared


@pytest.mark.parametrize("table", ["packages", "environment"])
def test_what_a_part_does_not_have_is_no_difference(table: str) -> None:
    _, *rest = getattr(RUN, table)
    less = {name: getattr(RUN, table)[name] for name in rest}
    other = msgspec.structs.replace(RUN, run="b", partial=(table,), **{table: less})
    found = compare_runs(RUN, other)
    assert found.differences == ()
    assert f"{table}: of one of them only a part is kept" in found.not_compared
    changed = msgspec.structs.replace(other, **{table: dict.fromkeys(less, "9.9")})
    assert {one.name for one in compare_runs(RUN, changed).differences} == set(rest)


def test_a_first_variable_is_a_difference() -> None:
    none = msgspec.structs.replace(RUN, run="b", environment={})
    found = compare_runs(none, RUN).differences
    assert {one.name: (one.before, one.after) for one in found} == {
        "NCCL_ALGO": (NOT_SET, "Ring"),
        "OMP_NUM_THREADS": (NOT_SET, "8"),
    }
    unread = msgspec.structs.replace(none, gaps=("environment: it does not answer",))
    assert compare_runs(unread, RUN).differences == ()


def test_hostile_node_lists_and_figures_end_nothing() -> None:
    other = msgspec.structs.replace(RUN, run="b", nodes="node[1-999999999]")
    (only,) = compare_runs(RUN, other).differences
    assert only.subject is Subject.NODES
    empty = RunFigures(times=(1.0,), steps=(None,), columns={"loss": (None,)})
    same = RunFigures(times=(1.0, 1.0) * 10, steps=(5,) * 20, columns={"loss": (0.0,) * 20})
    assert compare_runs(RUN, RUN, (empty, same)).differences == ()
    assert compare_runs(RUN, RUN, (same, same)).differences == ()


def test_a_zero_step_time_is_no_division() -> None:
    still = RunFigures(times=(), steps=(), columns={"step_seconds": (0.0,) * 20})
    assert compare_runs(RUN, RUN, (still, figures())).differences == ()


def test_options_have_their_values_whichever_way_they_are_written() -> None:
    words = ("/usr/bin/python3.11", "-u", "-X", "dev", "train.py", "run7", "--lr", "-1e-3", "--fp16",
             "--devices", "0", "1", "--name=x=y", "optim.lr=3", "+trainer.n=2", "--lr", "5")  # fmt: skip
    assert options_of(words) == {
        "argument 1": "run7",
        "--lr": "-1e-3 5",
        "--fp16": "",
        "--devices": "0 1",
        "--name": "x=y",
        "optim.lr": "3",
        "+trainer.n": "2",
    }
    assert options_of(("python", "-m", "pkg.train", "--a", "1")) == {"--a": "1"}
    assert options_of(()) == {}


def test_only_what_may_explain_a_run_is_recorded_and_no_secret() -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx",
        "PYTHONPATH": "/a:/b",
        "HOME": "/home/alice",
        "AWS_SECRET_ACCESS_KEY": "x",
        "NCCL_COMM_ID": "10.0.0.1:4000",
        "NCCL_X": "a\x1b[31mb\nc",
        "OMP_PROXY": "http://alice:geheim@proxy",
    }
    found = recorded_environment(given)
    assert set(found) == {"NCCL_DEBUG", "HF_TOKEN", "PYTHONPATH", "NCCL_X", "OMP_PROXY"}
    assert "abcdefgh" not in str(found)
    assert "geheim" not in str(found)
    assert found["NCCL_X"] == "ab c"


@pytest.mark.parametrize("length", [5, 500, 5000])
def test_a_huge_environment_is_a_bounded_record_that_is_known_to_be_a_part(length: int) -> None:
    many = {f"NCCL_{number}": "v" * length for number in range(5000)}
    found = recorded_environment(many)
    assert 10 < len(found) <= MOST < len(explaining(many))
    assert len(str(found)) < MOST_TOGETHER + 20 * MOST
    assert max(map(len, found.values())) <= LONGEST
    words = recorded_arguments(["v" * length] * 5000)
    assert 10 < len(words) <= MOST_WORDS
    assert sum(map(len, words)) <= MOST_TOGETHER


def test_long_values_that_differ_at_their_end_are_not_the_same() -> None:
    paths = ["/opt/a/lib:" * 400 + end for end in ("/opt/nccl-2.27", "/opt/nccl-2.28")]
    first, second = (recorded_environment({"LD_LIBRARY_PATH": path}) for path in paths)
    assert first != second
    assert first == recorded_environment({"LD_LIBRARY_PATH": paths[0]})
    assert first["LD_LIBRARY_PATH"].endswith(" characters, sha256 " + first["LD_LIBRARY_PATH"][-9:])
    one, other = (recorded_arguments(("python", "train.py", f"--data={path}")) for path in paths)
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_a_cut_shows_no_part_of_a_secret() -> None:
    for before in range(LONGEST - 60, LONGEST + 20):
        value = "x" * before + " https://alice:geheim-geheim@proxy"
        assert "geheim" not in str(recorded_environment({"OMP_PROXY": value}))
        assert "geheim" not in str(recorded_arguments(("python", "train.py", f"--to={value}")))
    words = ("python", "train.py", "--api-key", "abcdef", "--password=geheim", "--lr", "1")
    assert recorded_arguments(words) == ("python", "train.py", "--api-key", "***", "--password=***", "--lr", "1")  # fmt: skip


def test_what_mpirun_makes_up_for_its_ranks_is_not_recorded() -> None:
    made_up = ("orte_hnp_uri", "ess_base_jobid", "orte_precondition_transports", "orte_jobfam_session_dir", "pmix_server_uri", "initial_wdir")  # fmt: skip
    given = {f"OMPI_MCA_{name}": "1" for name in made_up}
    assert recorded_environment(given | {"OMPI_MCA_btl": "tcp,self"}) == {"OMPI_MCA_btl": "tcp,self"}  # fmt: skip


def test_packages_are_read_from_the_names_in_site_packages() -> None:
    names = ["numpy-2.1.0.dist-info", "Flash_Attn-2.7.4.post1.dist-info", "old-1.0-py3.11.egg-info",
             "numpy", "x.py", "evil-\x1b.dist-info", "a-1.dist-info.bak", "torch-2.8.0+cu128.dist-info"]  # fmt: skip
    assert package_versions(names) == {
        "flash-attn": "2.7.4.post1",
        "numpy": "2.1.0",
        "old": "1.0",
        "torch": "2.8.0+cu128",
    }


def test_not_set_is_told_where_one_has_it_alone() -> None:
    other = msgspec.structs.replace(RUN, run="b", environment={"OMP_NUM_THREADS": "8"})
    assert compare_runs(RUN, other).differences == (
        Difference(subject=Subject.ENVIRONMENT, name="NCCL_ALGO", before="Ring", after=NOT_SET),
    )
