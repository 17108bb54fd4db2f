"""Lines of a job in which a rank waits for its GPU: which are asked about, which are such lines, and how they count."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from mldebug.capture.folded_stacks import parse_folded
from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.rank_shares import MOST_FETCHES, CodeLine, is_fetch, rank_shares, usual_lines
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.watch.wait_sampler import SampleOrder, WaitSampler

MAIN = "thread (70): MainThread;<module> (/work/train.py:20)"
ITEM = CodeLine("/work/train.py", 9)
STACKS = f"""{MAIN};main (/work/train.py:9) 90
{MAIN};main (/work/train.py:7);forward (/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:130) 8
{MAIN};main (/work/train.py:8) 2
"""


def test_lines_of_the_job_that_are_often_the_innermost_are_asked_about() -> None:
    assert usual_lines(parse_folded(STACKS)) == (ITEM,)
    many = "".join(f"{MAIN};main (/work/train.py:{line}) 10\n" for line in range(1, 15))
    assert len(usual_lines(parse_folded(many))) == MOST_FETCHES
    short = parse_folded(STACKS.replace("/work/train.py", "train.py"))
    assert usual_lines(short) == (), "without its folder a file cannot be read"


@pytest.mark.parametrize(
    ("source", "fetches"),
    [
        ("loss_value = loss.item()", True),
        ("    history.append(outputs.detach().cpu().numpy())", True),
        ("preds += logits.argmax(-1).tolist()", True),
        ("torch.cuda.synchronize()", True),
        ("stream.synchronize()  # wait", True),
        ("x = x.to('cpu', non_blocking=False)", True),
        ("loss = model(batch)", False),
        ("for name, value in table.items():", False),
        ("batch = next(loader)  # later: loss.item()", False),
        ("x = x.to(device)", False),
        ("n = settings.item(3)", False),
        ("", False),
    ],
)
def test_a_line_that_takes_a_value_off_the_gpu(source: str, fetches: bool) -> None:
    assert is_fetch(source) is fetches


def test_samples_there_count_as_a_wait_for_the_gpu_and_elsewhere_as_work() -> None:
    stacks = parse_folded(STACKS)
    known = rank_shares(0, 70, stacks, stacks, fetches={ITEM})
    assert known is not None
    assert (known.on_gpu, known.waiting) == (0.9, 0.9)
    without = rank_shares(0, 70, stacks, stacks)
    assert without is not None
    assert (without.on_gpu, without.waiting) == (0.0, 0.0)


@pytest.mark.parametrize("device", ["/dev/nvidia0", "/dev/null"])
def test_the_sampler_reads_the_lines_of_ranks_that_have_a_gpu_open(tmp_path: Path, device: str) -> None:  # fmt: skip
    """Of a rank on CPUs such a line is none: there `x.sum().item()` computes."""
    script = tmp_path / "train.py"
    script.write_text("import torch\n" * 8 + "value = loss.item()\n")
    me = os.getpid()
    root = tmp_path / "node"
    (root / f"proc/{me}/fd").mkdir(parents=True)
    for name in ("stat", "status", "environ", "cgroup"):
        shutil.copy(f"/proc/{me}/{name}", root / f"proc/{me}/{name}")
    (root / f"proc/{me}/root").symlink_to("/")
    (root / f"proc/{me}/fd/3").symlink_to(device)
    tools = Mock()
    tools.context.host = Host(str(root))
    tools.context.host.root_of = lambda _: ""
    text = STACKS.replace("/work/train.py", str(script)).replace("(70)", f"({me})")
    tools.pyspy.record.return_value = parse_folded(text)
    rank = RankIdentity(rank=0, world_size=1, pid=me, start_ticks=Host().brief(me).start_ticks)  # type: ignore[union-attr]
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=1, ranks=(rank,))
    with Spawner() as spawner, Reader(spawner) as reader:
        tools.context.reader = reader
        (found,) = WaitSampler(tools).take(SampleOrder(job, seconds=0)).ranks
    assert found.on_gpu == (0.9 if device == "/dev/nvidia0" else 0.0)
