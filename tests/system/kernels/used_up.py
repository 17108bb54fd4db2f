"""Ranks that die of real quotas of the kernel, of a user, a group and a project: what the agent's code finds afterwards, and the verdict."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import inside
import quotas

from mldebug.config.schema import Config
from mldebug.core.model import Job, RankIdentity
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug.diagnosis.exits.words.last_words import last_error
from mldebug.storage.checkpoints.names import checkpoint_of
from mldebug_agents.agent.children import CHILDREN
from mldebug_agents.incidents.exits.space_evidence import SpaceEvidence
from mldebug_agents.storage.checkpoints.monitor import KnownSeries
from mldebug_agents.storage.checkpoints.reader import series_key
from mldebug_agents.storage.child.client import MountClient
from mldebug_agents.system.context import Context, open_context

TEAM, OTHER = 4321, 4322  # a user and his group each


def end_of(context: Context, folder: Path, user: int) -> Any:
    """The verdict on a rank of this user that writes checkpoints there until a write fails."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    log = inside.FOLDER / f"rank-{folder.name}.log"
    argv = inside.as_user(user, [sys.executable, str(Path(__file__).with_name("writer.py")), str(folder)])  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, cwd="/")
    until = time.monotonic() + 120
    while not list(folder.iterdir()):
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)
    rank = identity(context, process.pid, user)
    code = process.wait(300)
    lines = log.read_text().splitlines()
    print(*lines[-3:], sep="\n", flush=True)
    attempt = attempt_of(rank, code, lines)
    checkpoint = checkpoint_of(str(folder / "step-1.pt"))
    assert checkpoint is not None
    series = KnownSeries(*series_key(checkpoint), (), ())
    space = SpaceEvidence(context, MountClient(context.spawner), lambda _: (series,), lambda _: (str(folder.parent),))  # fmt: skip
    finding = judge_exit(space.complete(attempt)).finding
    assert finding is not None
    return {
        "error": lines[-1],
        "verdict": finding.verdict,
        "summary": finding.summary,
        "step": finding.next_steps[0],
    }


def identity(context: Context, pid: int, user: int) -> RankIdentity:
    """The rank as the agent knows it while it lives, and remembers it."""
    brief = context.host.brief(pid)
    assert brief is not None
    rank = RankIdentity(rank=0, world_size=1, pid=pid, start_ticks=brief.start_ticks, uid=user)
    assert context.host.rights.of(rank).uid == user
    assert list(context.host.rights.roots(rank))
    return rank


def attempt_of(rank: RankIdentity, code: int, lines: list[str]) -> AttemptExit:
    error = last_error(lines, "its own output")
    assert error is not None, lines
    job = Job(id="j", name="writer.py", launcher="manual", world_size=1, ranks=(rank,))
    ended = RankExit(rank=0, pid=rank.pid, at=time.time(), moment=0, status=code << 8)
    return AttemptExit(job=job, identities=(rank,), exits=(ended,), errors={0: error})


def find() -> Any:
    """Each kind of quota on an XFS that has all three, and that of a group on an ext4; last, an ext4 that is simply full."""
    inside.load("quota_v2")
    xfs = inside.mount("/dev/ubda", "xfs", "-o", "uquota,gquota,pquota")
    ext4 = inside.mount("/dev/ubdb", "ext4", "-o", "usrquota,grpquota")
    project = xfs / "project"
    project.mkdir()
    inside.run("xfs_quota", "-x", "-c", f"project -s -p {project} 7", str(xfs))
    quotas.limit(xfs, f"bhard=30m {inside.NOBODY}")
    quotas.limit(xfs, f"-g bhard=30m {TEAM}")
    quotas.limit(xfs, "-p bhard=30m 7")
    quotas.limit(ext4, f"-g bhard=30m {TEAM}", "-f")
    with open_context(Config, CHILDREN) as context:
        return {
            "user": end_of(context, xfs / "user", inside.NOBODY),
            "group": end_of(context, xfs / "group", TEAM),
            "project": end_of(context, project, OTHER),
            "group of ext4": end_of(context, ext4 / "group", TEAM),
            "full ext4": end_of(context, ext4 / "full", OTHER),
        }


if __name__ == "__main__":
    inside.main(find)
