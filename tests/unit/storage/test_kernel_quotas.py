"""Quotas that the kernel keeps: the recorded layout of its answer, and what is said of it."""

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.core.model import Job, RankIdentity
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.storage.child.messages import (
    KernelQuota,
    MountAnswer,
    MountRequest,
    QuotaOwners,
)
from mldebug_agents.storage.child.quota import parse_block, read_blocks
from mldebug_agents.storage.filesystems.kernel_quotas import WITH_QUOTAS, KernelQuotaCollector
from mldebug_agents.storage.filesystems.mounts import used_mounts
from mldebug_agents.system.host import Host

GIB = 1 << 30
ANSWER = struct.pack("<8QI4x", 2 << 20, 1 << 20, 900 << 20, 0, 500, 400, 0, 0, 63)  # limits in KiB


class Answering(MountClient):
    """A probe child on a machine whose kernel keeps quotas."""

    def __init__(self, *blocks: KernelQuota, reason: str = "") -> None:
        self.blocks, self.reason = blocks, reason
        self.requests: list[MountRequest] = []

    def ask(self, places: Sequence[MountRequest], seconds: float = 3.0) -> tuple[MountAnswer, ...]:
        self.requests = list(places)
        return tuple(MountAnswer(mount=one.mount, blocks=self.blocks, reason=self.reason) for one in places[:1]) + tuple(
            MountAnswer(mount=one.mount) for one in places[1:]
        )  # fmt: skip

    def close(self) -> None:
        """There is no child."""


def job() -> Job:
    rank = RankIdentity(rank=0, world_size=1, pid=os.getpid(), uid=os.geteuid())
    return Job(id="j", name="train", launcher="environment", ranks=(rank,))


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def look(tools: NodeTools, probe: Answering) -> KernelQuotaCollector:
    desk = KernelQuotaCollector(tools.context, probe)  # type: ignore[arg-type]
    if not any(
        one.mount.fstype in WITH_QUOTAS for one in used_mounts(Host(), [job()], ()).values()
    ):
        pytest.skip("no rank here is on a filesystem that can keep quotas")
    desk.look(1.0, [job()])
    return desk


def test_the_layout_of_the_kernels_answer() -> None:
    block = parse_block(ANSWER, 0, 1000)
    assert (block.used, block.limit) == (900 << 20, GIB)  # the soft limit: it is the lower one
    assert (block.inodes, block.inodes_limit) == (400, 500)


def test_a_quota_that_is_nearly_used_up_is_an_alarm(tools: NodeTools) -> None:
    block = KernelQuota(
        kind=0, id=os.geteuid(), used=GIB * 9 // 10, limit=GIB, inodes=1, inodes_limit=10
    )
    desk = look(tools, Answering(block))
    (alarm,) = desk.alarms()
    who = Host().user(os.geteuid())
    assert alarm.sentence.startswith(f"quota of user {who} on ")
    assert alarm.sentence.endswith(": 90.0% used, 922 MiB of 1 GiB, 10.0% of its inodes")
    assert {one.metric: one.value for one in desk.samples()} == {
        "mldebug_filesystem_quota_used_ratio": pytest.approx(0.9),
        "mldebug_filesystem_quota_inodes_used_ratio": 0.1,
    }


def test_no_limit_is_no_row_and_no_alarm(tools: NodeTools) -> None:
    desk = look(
        tools, Answering(KernelQuota(kind=2, id=7, used=5, limit=0, inodes=1, inodes_limit=0))
    )
    assert desk.status() == {}
    assert list(desk.alarms()) == []


def test_what_may_not_be_known_is_a_gap(tools: NodeTools) -> None:
    probe = Answering(reason="Operation not permitted")
    desk = look(tools, probe)
    (gap,) = desk.gaps()
    assert (gap.reason, "root" in gap.way_out) == ("Operation not permitted", True)
    owners = probe.requests[0].owners
    assert owners is not None
    assert (0, os.geteuid()) in owners.ids


def test_a_filesystem_without_quotas_tells_none(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        folders = (os.fsencode(tmp_path), b"/proc/self/cwd", b"/nowhere")
        assert read_blocks(handle, QuotaOwners(((0, os.geteuid()),), folders)) == ()
    finally:
        os.close(handle)
