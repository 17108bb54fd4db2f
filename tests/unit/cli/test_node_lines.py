"""`mldebug status` and `gpus list` of several nodes: who does not answer comes first, and what is alike shares a line."""

import sys
from typing import Any

import msgspec
import pytest

from mldebug.cluster.wire import NodeReply, decode, encode, read_line
from mldebug.config.schema import Config
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.model import GpuBrief, NodeBrief, RankBrief, RunBrief
from mldebug.status.merged_runs import ViewedNodes
from mldebug.status.node_lines import gpus_of_nodes, status_of_nodes
from mldebug_agents.cli import node_search
from mldebug_agents.cli.commands import gpus as gpus_module
from mldebug_agents.cluster.node_views import FarNodes, far_nodes


def node(number: int, **changes: Any) -> NodeBrief:
    ranks = tuple(RankBrief(rank=8 * (number - 1) + local) for local in range(8))
    run = RunBrief(key=("slurm", "7"), id="7", name="train.py", launcher="slurm", user="ada", world_size=320, ranks=ranks, step=100 + number)  # fmt: skip
    gpus = tuple(GpuBrief(index=index, name="NVIDIA H100", busy=0.9 + number / 1000, state="healthy") for index in range(8))  # fmt: skip
    made = NodeBrief(node=f"gpu{number:02d}", agent_seconds=60.0, runs=(run,), gpus=gpus)
    return msgspec.structs.replace(made, **changes)


def lines(nodes: ViewedNodes, gpus: bool = False) -> list[str]:
    return [line.text for line in (gpus_of_nodes if gpus else status_of_nodes)(nodes)]


FORTY = tuple(node(number) for number in range(1, 41))


def test_forty_nodes_that_are_alike_share_a_line_of_eighty_columns() -> None:
    shown = lines(ViewedNodes(answers=FORTY), gpus=True)
    assert shown == [
        "40 nodes (gpu[01-40]): 320 GPUs, nothing wrong with them",
        "gpu[01-40]  8 x NVIDIA H100 fine",
        "  busy 90-94 %",
    ]
    status = lines(ViewedNodes(answers=FORTY))
    assert max(map(len, [*shown, *status])) <= 80
    assert status[0] == "40 nodes (gpu[01-40]): 1 training run"
    assert "  ranks 0-319 of 320 on 40 nodes: gpu[01-40]" in status
    assert "  step 140" in status
    assert "gpu[01-40]: 8 ranks, an agent watches, 8 x NVIDIA H100 fine" in status


@pytest.mark.parametrize("gpus", [True, False])
def test_who_does_not_answer_is_told_first(gpus: bool) -> None:
    silent = {"gpu39": "no answer in 30 s", "gpu40": "no answer in 30 s"}
    shown = lines(ViewedNodes(answers=FORTY[:38], silent=silent), gpus)
    assert shown[0] == "✘ gpu[39-40]: no answer in 30 s"
    assert shown[1].startswith("38 of 40 nodes answered (gpu[01-38]): ")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("incident", "silent", "status", "gpus"),
    [
        ("", {}, ExitCode.FINE, ExitCode.FINE),
        ("", {"gpu02": "no answer in 30 s"}, ExitCode.MISSING, ExitCode.MISSING),
        ("20261127-1", {}, ExitCode.FOUND, ExitCode.FINE),
        ("20261127-1", {"gpu02": "no answer in 30 s"}, ExitCode.FOUND, ExitCode.MISSING),
    ],
)
def test_a_node_that_does_not_answer_is_not_fine(
    monkeypatch: pytest.MonkeyPatch, as_json: bool, incident: str, silent: dict[str, str],
    status: ExitCode, gpus: ExitCode,
) -> None:  # fmt: skip
    run = msgspec.structs.replace(FORTY[0].runs[0], incident=incident)
    nodes = ViewedNodes(answers=(node(1, runs=(run,)),), silent=silent)
    monkeypatch.setattr(node_search, "view_nodes_once", lambda *_: nodes)
    far = far_nodes(("status",), None, "gpu[01-02]", "", None)
    assert isinstance(far, FarNodes)
    assert node_search.show_far(Config(), far, as_json) is status
    assert gpus_module._show_nodes(nodes, as_json) is gpus


def test_a_node_with_a_bad_gpu_stands_apart() -> None:
    gpus = (*FORTY[6].gpus[:3], GpuBrief(index=3, name="NVIDIA H100", state="unhealthy"), *FORTY[6].gpus[4:])  # fmt: skip
    sick = node(7, gpus=gpus, alerts=("GPU 3 is unhealthy: ECC → drain",))
    shown = lines(ViewedNodes(answers=(*FORTY[:6], sick, *FORTY[7:])), gpus=True)
    assert shown[0].endswith("320 GPUs, 1 not fine")
    assert "gpu[01-06,08-40]  8 x NVIDIA H100 fine" in shown
    assert "gpu07  8 x NVIDIA H100 GPU 3 unhealthy" in shown
    assert shown[-1] == "! gpu07: GPU 3 is unhealthy: ECC → drain"


def test_an_open_incident_and_a_rank_that_is_gone_are_shown_with_their_node() -> None:
    ranks = (*FORTY[1].runs[0].ranks[:7], RankBrief(rank=15, state="exited", doing="killed by SIGKILL (9)"))  # fmt: skip
    ill = msgspec.structs.replace(FORTY[1].runs[0], incident="i1", report="rank 15 was killed", stage="blamed", ranks=ranks, absent=1)  # fmt: skip
    shown = lines(ViewedNodes(answers=(FORTY[0], node(2, runs=(ill,)))))
    assert "  rank 15 on gpu02 is gone: killed by SIGKILL (9)" in shown
    assert "  rank 15 was killed" in shown
    assert "  1 rank missing" in shown


def test_what_nodes_say_cannot_paint_the_terminal() -> None:
    shown = lines(ViewedNodes(answers=(node(1, alerts=("\x1b[2J",)),), silent={"n\x1b": "\x07"}))
    assert not {"\x1b", "\x07"} & set("".join(shown))


def test_a_view_comes_over_the_wire_as_it_was_sent() -> None:
    pieces = [read_line(line) for line in encode(NodeReply(node="n1", view=FORTY[0]))]
    text = b"".join(piece.text for piece in pieces if piece is not None)
    assert decode(text).view == FORTY[0]


def test_nodes_are_named_in_one_way() -> None:
    named = far_nodes(("status", "--send"), None, "n[1-3]", "", None)
    assert named is not None
    assert (named.transport, named.request.target, named.request.python, named.request.timeout) == ("ssh", "n[1-3]", sys.executable, 30.0)  # fmt: skip
    assert far_nodes((), None, None, "", None) is None
    with pytest.raises(UsageError, match="not both"):
        far_nodes((), "7", "n1", "", None)
    with pytest.raises(UsageError, match="no nodes are named"):
        far_nodes((), "", None, "", None)
