"""What the figures of a node come to: wrong values, slow GPUs, ports that are down, and one line for the scheduler."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli
from mldebug.core.errors import UsageError
from mldebug.probes.baselines import shipped
from mldebug.probes.checks import Acceptance, NodeCheck, accept, below_others, drain_reason
from mldebug.probes.node_checks import stage_checks
from mldebug.probes.pairs import rate_words
from mldebug.probes.ports import Port, ports_check, read_port
from mldebug_agents.probes.child import ChildExit, Event
from mldebug_agents.probes.inside import forks, schedule, workloads
from mldebug_agents.probes.node_stages import NodeProbe, NodeRequirements, read_ports
from mldebug_agents.probes.session import TorchFacts
from mldebug_agents.system.host import Host

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
BASELINES = shipped()


def checks(stage: str, results: dict[str, dict[str, Any]], model: str = H200) -> list[NodeCheck]:
    models = dict.fromkeys(results, model)
    if stage == "peers":
        models = {f"GPU {gpu}": model for gpu in range(8)}
    return list(stage_checks(stage, results, 1.0, models, BASELINES))


def matmul(*tflops: float, **more: Any) -> dict[str, dict[str, Any]]:
    return {
        f"GPU {gpu}": {"flops": one * 1e12, "wrong": 0, "differing": 0, "checksum": 7, **more}
        for gpu, one in enumerate(tflops)
    }


def test_equal_gpus_are_fine() -> None:
    (check,) = checks("matmul", matmul(700, 705, 698, 702))
    assert check.state == "fine"
    assert check.sentence.startswith("matmul: 698 TFLOPS or more, 88% of what this hardware does")
    assert check.figures["GPU 1"] == 705e12


def test_8_bit_floats_are_a_line_of_their_own() -> None:
    (check,) = checks("fp8", {"GPU 0": {"flops": 1310e12}, "GPU 1": {"late": True}})
    assert check.sentence.startswith("fp8: 1,310 TFLOPS or more, 90% of what this hardware does")
    assert check.state == "fine"


@pytest.mark.parametrize("result", [{"error": "RuntimeError: torch._scaled_mm is only supported on …"}, {"died": True}, {"late": True}])  # fmt: skip
def test_who_multiplies_no_8_bit_floats_is_not_drained_for_it(result: dict[str, Any]) -> None:
    (check,) = checks("fp8", {"GPU 0": result})
    assert check.state == "skipped"
    assert accept("n1", [check]).fit


def test_rates_are_told_without_exponents() -> None:
    assert [rate_words(one) for one in (2.88e12, 52.5e9, 9.994e8, 12.0)] == [
        "2.88 TB/s",
        "52.5 GB/s",
        "999 MB/s",
        "12 B/s",
    ]


@pytest.mark.parametrize(("slow", "state"), [(670.0, "fine"), (664.9, "failed"), (400.0, "failed")])
def test_a_gpu_five_percent_below_the_median_is_a_finding(slow: float, state: str) -> None:
    (check,) = checks("matmul", matmul(700, 700, slow, 700))
    assert check.state == state
    assert ("GPU 2 is" in check.sentence) == (state == "failed")


def test_gpus_of_different_models_are_not_compared() -> None:
    rates = {"GPU 0": 700.0, "GPU 1": 150.0, "GPU 2": 140.0}
    models = {"GPU 0": H100, "GPU 1": "NVIDIA A10", "GPU 2": "NVIDIA A10"}
    assert below_others(rates, models, 0.05) == []
    assert below_others(rates, dict.fromkeys(rates, H100), 0.05) == ["GPU 2 is 7% below the median of its neighbours"]  # fmt: skip


def test_all_gpus_far_below_what_was_published_are_a_finding() -> None:
    (check,) = checks("matmul", matmul(300, 300), H100)
    assert check.state == "failed"
    assert "GPU 0 has 300 TFLOPS, at least 556 TFLOPS are expected" in check.sentence


def test_silent_corruption_is_a_finding_whatever_the_speed() -> None:
    results = matmul(700, 700, 700)
    results["GPU 1"] |= {"checksum": 8}
    assert checks("matmul", results)[0].sentence == "matmul: GPU 1 has another product than the others"  # fmt: skip
    results = matmul(700, 700)
    results["GPU 1"] |= {"differing": 3}
    assert checks("matmul", results)[0].sentence == "matmul: GPU 1: 3 products differ from the first one"  # fmt: skip
    results["GPU 1"] |= {"wrong": 2}
    assert checks("matmul", results)[0].sentence == "matmul: GPU 1: 2 wrong products"


def test_of_two_gpus_with_different_products_neither_is_named() -> None:
    results = matmul(700, 700)
    results["GPU 1"] |= {"checksum": 8}
    assert checks("matmul", results)[0].sentence == "matmul: the GPUs have different products"


def test_a_gpu_that_hangs_dies_or_raises_costs_only_its_own_figures() -> None:
    results = matmul(700, 700, 700, 700)
    results |= {"GPU 1": {"late": True}, "GPU 2": {"error": "AcceleratorError: device lost"}}
    failed, fine = checks("matmul", results)
    assert failed.sentence == "matmul: GPU 1: did not end in time; GPU 2: AcceleratorError: device lost"  # fmt: skip
    assert fine.state == "fine"
    assert sorted(fine.figures) == ["GPU 0", "GPU 3"]


def test_memory_that_nobody_holds_and_memory_that_somebody_holds() -> None:
    full = {"GPU 0": {"free": 140 << 30, "total": 141 << 30, "taken": 138 << 30, "wrong": 0}}
    assert checks("memory", full)[0].sentence == "memory: 138 GiB or more written and read back"
    full["GPU 0"]["free"] = 100 << 30
    assert (
        checks("memory", full)[0].sentence == "memory: GPU 0: 41.0 of 141.0 GiB are taken already"
    )
    full["GPU 0"] |= {"wrong": 4}
    assert checks("memory", full)[0].sentence == "memory: GPU 0: 4 wrong bytes"


def test_a_bad_link_between_two_gpus_is_named() -> None:
    pairs = [
        {"pair": [a, b], "access": True, "bandwidth": 20e9 if (a, b) == (1, 3) else 380e9}
        for a in range(4)
        for b in range(a + 1, 4)
    ]
    (check,) = checks("peers", {"node": {"pairs": pairs}})
    assert check.state == "failed"
    assert check.sentence.startswith(
        "peers: GPU 1 - GPU 3: the pair has 20 GB/s, the best 380 GB/s"
    )
    slow = [{**one, "bandwidth": 200e9} for one in pairs]
    assert "GPU 0 - GPU 1 has 200 GB/s" in checks("peers", {"node": {"pairs": slow}}, H100)[0].sentence  # fmt: skip


def test_links_of_different_models_are_not_compared() -> None:
    pairs = [
        {"pair": [a, b], "access": False, "bandwidth": 6e9 if b == 3 else 24e9}
        for a in range(4)
        for b in range(a + 1, 4)
    ]
    assert checks("peers", {"node": {"pairs": pairs}})[0].state == "failed"
    models = {"GPU 0": H200, "GPU 1": H200, "GPU 2": H200, "GPU 3": "NVIDIA A10"}
    (result,) = stage_checks("peers", {"node": {"pairs": pairs}}, 1.0, models, BASELINES)
    assert result.state == "fine", result


class TwoModels:
    """What `topology` asks torch for."""

    cuda: Any

    def __init__(self) -> None:
        self.cuda = self

    def get_device_properties(self, gpu: int) -> SimpleNamespace:
        return SimpleNamespace(name="NVIDIA A10" if gpu == 2 else H200)

    def can_device_access_peer(self, a: int, b: int) -> bool:
        return 2 not in (a, b)


def test_ways_between_gpus_are_of_a_kind_of_their_own_for_each_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "import_module", lambda _: TwoModels())
    assert schedule._read_paths(3) == {
        "0,1": "peer access, NVIDIA H200 with NVIDIA H200",
        "0,2": "through the host, NVIDIA A10 with NVIDIA H200",
        "1,2": "through the host, NVIDIA A10 with NVIDIA H200",
    }
    assert schedule._read_paths(2) == {"0,1": "peer access"}


def test_copies_below_what_was_published() -> None:
    figures = {"host_to_device": 30e9, "device_to_host": 30e9, "device_to_device": 3e12}
    check = checks("copy", {"GPU 0": figures}, H100)
    assert [one.state for one in check] == ["failed", "fine", "fine"]
    assert "GPU 0 has 30 GB/s, at least 48 GB/s are expected" in check[0].sentence


def test_every_published_figure_has_a_source_and_every_pattern_is_one() -> None:
    for model in BASELINES.models:
        re.compile(model.match)
        figures = [model.matmul_bf16, model.host_to_device, model.peer_copy, model.all_reduce]
        for one in figures:
            assert one is None or (one.source and (one.best or one.least))
    assert BASELINES.limit("NVIDIA H100 PCIe", "matmul_bf16") is None
    assert BASELINES.limit(H100, "all_reduce", gpus=4) is None
    assert BASELINES.limit(H100, "all_reduce", gpus=8) is not None


@pytest.mark.parametrize(
    ("wanted", "state", "words"),
    [
        (None, "fine", "ib: 2 of 3 ports are active"),
        ("2", "fine", "2 of 3"),
        ("2x400", "failed", "ib: 1 of 2 ports of 400 Gb/s are active"),
        ("3", "failed", "ib: 2 of 3 ports are active"),
    ],
)
def test_ports(wanted: str | None, state: str, words: str) -> None:
    ports = [
        read_port("mlx5_0/1", "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)"),
        read_port("mlx5_1/1", "4: ACTIVE\n", "5: LinkUp\n", "200 Gb/sec (4X HDR)\n"),
        read_port("mlx5_2/1", "1: DOWN", "3: Disabled", "10 Gb/sec (4X SDR)"),
    ]
    result = ports_check(ports, wanted)
    assert (result.state, words in result.sentence) == (state, True), result


def test_a_port_with_a_link_that_the_subnet_manager_has_not_seen() -> None:
    result = ports_check([Port(name="mlx5_0/1", state="INIT", physical="LinkUp", gigabits=400)])
    assert (result.state, result.sentence) == ("failed", "ib: mlx5_0/1 has a link and is INIT")


def test_ports_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    (folder / "rate").write_text("nonsense\n")
    (only,) = read_ports(Host(str(tmp_path)))
    assert only == Port(name="mlx5_0/1", state="ACTIVE", physical="", gigabits=None)


def test_the_reason_for_the_scheduler_is_one_short_line_without_quotes() -> None:
    failed = [
        NodeCheck(stage="x", state="failed", sentence='GPU 3 "is"\nslow$(reboot)' + "x" * 200)
    ] * 3
    reason = drain_reason(failed)
    assert len(reason) == 100
    assert reason.startswith("mldebug: GPU 3 isslow(reboot)x")
    assert reason.endswith("… (+2 more)")
    assert drain_reason([]) == ""


def test_the_verdict_names_what_was_skipped() -> None:
    skipped = NodeCheck(stage="nccl", state="skipped", sentence="nccl: there is only one GPU")
    fine = NodeCheck(stage="dram", state="fine", sentence="dram: 9 GB/s")
    result = accept("n1", [skipped, fine])
    assert (result.fit, result.verdict) == (True, "fit: checked dram; skipped nccl")
    bad = NodeCheck(stage="disk", state="failed", sentence="disk: OSError: full")
    assert accept("n1", [fine, bad]).verdict == "unfit: disk: OSError: full"


def test_a_missing_gpu_is_a_reason_to_drain() -> None:
    result = CliRunner().invoke(
        cli, ["probe", "node", "--stages", "driver", "--require-gpus", "8", "--drain-reason"], standalone_mode=False
    )  # fmt: skip
    assert result.return_value == 1
    assert result.stdout == "mldebug: driver: 0 of 8 GPUs answer\n"


class Session:
    """What `load` needs of one: a stage was done, then it ended so."""

    device = "cuda"

    def __init__(self, ended: ChildExit, *stages: dict[str, Any]) -> None:
        self.facts = TorchFacts(gpus=1)
        self._ended, self._stages = ended, stages

    def run(
        self, _: str, __: object, on_event: Callable[[Event], None], **___: object
    ) -> ChildExit:
        for one in self._stages:
            on_event({"event": "stage", "seconds": 1.0, "cut": False} | one)
        return self._ended


def loaded(session: Session) -> tuple[NodeProbe, Acceptance]:
    probe = NodeProbe(NodeRequirements(stages=("matmul", "dram")), BASELINES, lambda _: None)
    probe.load(cast("Any", session))
    return probe, accept("n1", probe.checks, probe.cut)


def test_a_job_that_appears_or_too_short_a_duration_drains_no_node() -> None:
    job = ChildExit(outcome="cancelled", reason="the training job x runs on this node")
    late = ChildExit(outcome="late", reason="it did not end within 9 s")
    cut = {"stage": "matmul", "results": {"GPU 0": {"late": True}}, "cut": True}
    for session, why in (
        (Session(job), "the probe was ended: the training job x runs on this node"),
        (Session(late), "--duration left no time for all stages"),
        (Session(late, cut), "--duration left no time for matmul"),
    ):
        probe, result = loaded(session)
        assert probe.cut == why
        assert (result.fit, result.drain_reason, result.verdict) == (False, "", f"not all was checked: {why}")  # fmt: skip


def test_what_was_found_before_a_job_appeared_is_still_a_reason_to_drain() -> None:
    job = ChildExit(outcome="cancelled", reason="the training job x runs on this node")
    _, result = loaded(Session(job, {"stage": "matmul", "results": {"GPU 0": {"error": "lost"}}}))
    assert (result.fit, result.drain_reason) == (False, "mldebug: matmul: GPU 0: lost")


def test_a_probe_that_fails_is_a_finding() -> None:
    _, result = loaded(Session(ChildExit(outcome="failed", reason="a GPU does not answer")))
    assert result.drain_reason == "mldebug: matmul: a GPU does not answer"


@pytest.mark.parametrize(
    ("wanted", "answering", "cut"),
    [
        (NodeRequirements(stages=("matmul",)), 8, "PyTorch sees 0 of 8 GPUs"),
        (NodeRequirements(stages=("matmul",), gpus=4), 0, "PyTorch sees 0 of 4 GPUs"),
        (NodeRequirements(stages=("matmul",)), 0, ""),
        (NodeRequirements(stages=("dram",)), 8, ""),
        (NodeRequirements(stages=("matmul",), cpus_only=True), 8, ""),
    ],
)
def test_a_node_of_which_pytorch_sees_no_gpu_is_not_fit_and_not_drained(
    wanted: NodeRequirements, answering: int, cut: str
) -> None:
    session = Session(ChildExit(outcome="done"), {"stage": "dram", "results": {}})
    session.facts, session.device = TorchFacts(gpus=0), "cpu"
    probe = NodeProbe(wanted, BASELINES, lambda _: None)
    probe._answering = answering
    probe.load(cast("Any", session))
    result = accept("n1", probe.checks, probe.cut)
    assert (probe.cut, result.fit, result.drain_reason) == (cut, not cut, "")


def test_what_was_found_before_the_end_of_patience_is_a_reason_to_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurm's epilog is ended by `timeout`."""

    def ended(probe: NodeProbe, *_: object) -> None:
        probe.checks.append(
            NodeCheck(stage="memory", state="failed", sentence="memory: GPU 0: late")
        )
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("mldebug_agents.probes.verbs.node._probe", ended)
    result = CliRunner().invoke(
        cli, ["probe", "node", "--stages", "memory", "--drain-reason"], standalone_mode=False
    )
    assert result.exit_code == 128 + signal.SIGTERM
    assert result.stdout == "mldebug: memory: GPU 0: late\n"


def test_a_figure_of_nccl_counts_only_for_the_payload_that_was_published() -> None:
    probe = NodeProbe(NodeRequirements(), BASELINES, lambda _: None)
    probe._models = {f"GPU {gpu}": H100 for gpu in range(8)}
    probe._judge_nccl(400e9, 1 << 30, 8, 1.0)
    probe._judge_nccl(400e9, 8 << 30, 8, 1.0)
    assert [one.state for one in probe.checks] == ["fine", "failed"]


def test_a_disk_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    result = workloads.disk({"disk": str(tmp_path)})
    assert result["bandwidth"] > 0
    assert result["bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_drains_no_node(tmp_path: Path) -> None:
    """A word that was mistyped would drain one node after the other."""
    result = workloads.disk({"disk": str(tmp_path / "scrtach")})
    stage = {"stage": "disk", "results": {"node": result}}
    wanted = NodeRequirements(stages=("disk",), disk=str(tmp_path / "scrtach"))
    probe = NodeProbe(wanted, BASELINES, lambda _: None)
    probe.load(cast("Any", Session(ChildExit(outcome="done"), stage)))
    answer = accept("n1", probe.checks, probe.cut)
    assert (answer.fit, answer.drain_reason) == (False, "")
    assert (
        answer.verdict == f"not all was checked: there is no folder {tmp_path}/scrtach on this node"
    )
    assert "disk" in probe.way_out


@pytest.mark.parametrize("words", [("--stages", ""), ("--stages", "driver,")])
def test_no_stages_are_not_all_of_them(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, ["probe", "node", *words], standalone_mode=False)
    assert isinstance(result.exception, UsageError)
    assert "there is no stage ''" in result.exception.message


def test_failures_of_forks_in_words() -> None:
    assert forks.failure({"late": True}) == "it did not end in time"
    assert forks.failure({"died": -9}) == "it was killed by signal 9"
    assert forks.failure({"died": 3}) == "it ended with code 3"
    assert forks.failure({"figure": 1}) == ""
