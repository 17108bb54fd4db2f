"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd in the foreground, all files in one folder.

Nothing of it touches a Slurm that is installed here: its own key, sockets, ports and spools. Everything it starts is ended
by pid. Needs root: slurmd starts each task as the user of the job.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from processes.harness import free_port, wait_for
from system.hosts import on_host

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "scontrol", "sinfo")
NODES = ("a1", "a2")
_CONF = """
ClusterName=mldebug
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={control}
SlurmdPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
SchedulerParameters=sched_interval=1
MailProg=/bin/true
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster that runs. `environment` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}  # by node

    @property
    def environment(self) -> dict[str, str]:
        """For srun, sbatch, scancel."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *argv: str) -> str:
        """What one of its commands prints."""
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=60,
            env=os.environ | self.environment,
        )  # fmt: skip
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def idle(self) -> bool:
        """Are both nodes up, with nothing on them?"""
        return self.run("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * 2

    def free(self) -> None:
        """End whatever runs: a job whose processes were all killed at once may keep its nodes for minutes."""
        for job in re.findall(r"JobId=(\d+)", self.run("scontrol", "show", "job")):
            with suppress(AssertionError):  # over already
                self.run("scancel", "--signal=KILL", "--full", job)
                self.run("scancel", job)
        with suppress(AssertionError):
            wait_for("all steps to end", self.idle, 10)

    def tail(self) -> str:
        """The ends of its logs."""
        return "\n".join(
            f"{file.name}: {file.read_text(errors='replace')[-1500:]}"
            for file in sorted(self.folder.glob("*.log"))
        )


def _configure(folder: Path, more: str) -> None:
    host = os.uname().nodename.partition(".")[0]
    ports = {name: free_port() for name in NODES}
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN"
        for name, port in ports.items()
    )
    # `scontrol pidinfo` asks the slurmd of this port: that of the first node
    own = ports[NODES[0]]
    text = _CONF.format(host=host, control=free_port(), port=own, folder=folder, nodes=nodes)
    (folder / "slurm.conf").write_text(f"{text}{more}\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)


def _munged(folder: Path) -> list[str]:
    return [
        "munged", "--foreground", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munged.log",
        f"--seed-file={folder}/munge.seed", "--num-threads=2",
    ]  # fmt: skip


@contextmanager
def _daemon(argv: Sequence[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A program in the foreground, ended by its pid."""
    name = argv[0].rpartition("/")[2]
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / f"{name}-output.log").open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _slurmd(node: str, folder: Path, apart: bool) -> list[str]:
    argv = ["slurmd", "-D", "-N", node, "-f", str(folder / "slurm.conf")]
    return on_host(node, folder, argv, NODES) if apart else argv


@contextmanager
def slurm(*, apart: bool = False, more: str = "") -> Iterator[Slurm]:
    """The cluster, both nodes idle. At the end nothing of it is left, the steps it started included.

    `apart`: each node has processes and a host name of its own, as two machines have. `more`: lines of slurm.conf.
    """
    folder = Path(tempfile.mkdtemp(prefix="mldebug-slurm-"))
    folder.chmod(0o755)  # munge refuses a socket below a folder that others may not enter
    cluster = Slurm(folder)
    _configure(folder, more)
    conf = str(folder / "slurm.conf")
    try:
        with ExitStack() as stack:
            stack.enter_context(_daemon(_munged(folder), folder))
            wait_for("munged", (folder / "munge.socket").exists, 20)
            stack.enter_context(_daemon(["slurmctld", "-D", "-f", conf], folder))
            for node in NODES:
                argv = _slurmd(node, folder, apart)
                cluster.daemons[node] = stack.enter_context(_daemon(argv, folder))
            try:
                wait_for("both nodes to be idle", lambda: _up(cluster), 60)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{cluster.tail()}") from None
            yield cluster
            cluster.free()  # `_end_stepds` does what is left
    finally:
        _end_stepds(folder)
        shutil.rmtree(folder)


def _up(cluster: Slurm) -> bool:
    with suppress(AssertionError):
        return cluster.idle()
    return False


def _end_stepds(folder: Path) -> None:
    """slurmstepd detaches from slurmd: it is known by its command's folder, which is only ours."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdigit() or (entry / "comm").read_text().strip() != "slurmstepd":
                continue
            if os.readlink(entry / "cwd").startswith(str(folder)):
                os.kill(int(entry.name), signal.SIGKILL)
