"""One command on many nodes: whatever a node does, it is told of, in time, and nothing is left running."""

import io
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.cli.console import Console
from mldebug.cluster.merge import NodeReplies
from mldebug.cluster.wire import NodeReply, encode
from mldebug.config.schema import load_config
from mldebug.core.errors import ConfigError, MissingError, MldebugError, ToolError, UsageError
from mldebug_agents.cluster.fanout import child
from mldebug_agents.cluster.fanout.collector import ReplyCollector, ask_all
from mldebug_agents.cluster.fanout.messages import NAME, FanoutNews, FanoutPlan, FanoutRequest
from mldebug_agents.cluster.fanout.progress_line import Waiting, words
from mldebug_agents.cluster.node_captures import capture_all
from mldebug_agents.cluster.transports import slurm, ssh
from mldebug_agents.system.spawn import Completed, FakeSpawner, Spawner
from shared.cluster.nodes import replies, run, sleeper
from shared.system.patience import PATIENCE

FAKE_SSH = """#!/bin/sh
# the last two words are the host and its command
while [ $# -gt 2 ]; do shift; done
cd {folder}
echo "$1 $2" >> asked
case $1 in
  good*) printf 'Welcome to the cluster'; cat answer ;;
  hangs*) echo $$ >> pids; echo "mount.nfs: waiting" >&2; exec sleep 1000 ;;
  garbage*) head -c 300000 /dev/urandom; exit 0 ;;
  endless*) head -c 50000000 /dev/zero; exit 0 ;;
  cut*) head -n 2 answer; exit 1 ;;
  old*) cat old ;;
  nothing*) exit 0 ;;
  bare*) echo "x: No module named mldebug" >&2; exit 1 ;;
  key*) echo "root@$1: Permission denied (publickey)." >&2; exit 255 ;;
  gone*) echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255 ;;
  full*) echo "OSError: [Errno 28] No space left on device" >&2; exit 1 ;;
  rude*) printf 'bad \\033[31mred\\007\\n' >&2; exit 3 ;;
  late*) exit 124 ;;
esac
"""


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner({NAME: child.serve}) as one:
        yield one


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with an `ssh` that plays the hosts."""
    script = tmp_path / "ssh"
    script.write_text(FAKE_SSH.format(folder=shlex.quote(str(tmp_path))))
    script.chmod(0o755)
    answer = next(iter(replies(run(1, 8, {3: sleeper()})).values()))
    (tmp_path / "answer").write_bytes(b"".join(encode(answer)))
    newer = NodeReply(node="x", schema="mldebug.node/99", version="9.0")
    (tmp_path / "old").write_bytes(b"".join(encode(newer)))
    return tmp_path


def replies_of(spawner: Spawner, folder: Path, hosts: str, timeout: float = 10.0) -> NodeReplies:
    transport = ssh.create(ssh.Options(ssh=str(folder / "ssh"), tree="none"))
    wanted = FanoutRequest(
        target=hosts, python="/opt/py", arguments=("dump", "--send"), timeout=timeout
    )
    return ask_all(spawner, transport.plan(wanted, spawner), transport)


def test_every_node_is_told_of(spawner: Spawner, fake: Path) -> None:
    result = replies_of(
        spawner, fake, "good[1-3],garbage,endless,cut,old,nothing,bare,key,gone,full,rude,late"
    )
    failed = {node.name: node for node in result.failed}

    assert sorted(result.replies) == ["good1", "good2", "good3"]
    assert result.replies["good1"].captures[0].ranks[3].identity.rank == 3
    assert {name: (node.state, node.reason) for name, node in failed.items()} == {
        "garbage": ("unable", "nothing came that mldebug could read"),
        "endless": ("unable", "it wrote more than 16 MiB"),
        "nothing": ("unable", "nothing came that mldebug could read"),
        "cut": ("unable", failed["cut"].reason),
        "old": ("refused", failed["old"].reason),
        "bare": ("unable", "x: No module named mldebug"),
        "key": ("unable", "root@it: Permission denied (publickey)."),
        "gone": ("silent", "ssh: connect to host it port 22: No route to host"),
        "full": ("unable", "OSError: [Errno 28] No space left on device"),
        "rude": ("unable", "bad red"),
        "late": ("unable", "mldebug was not done in time there"),
    }
    assert failed["cut"].reason.startswith("only 1 of ")
    assert "which is newer and speaks mldebug.node/99" in failed["old"].reason
    assert failed["bare"].way_out == "install mldebug there, or name its Python with --python"


def test_a_node_that_hangs_costs_its_time_and_no_more(spawner: Spawner, fake: Path) -> None:
    began = time.monotonic()
    result = replies_of(spawner, fake, "good1,hangs1", timeout=1.0)

    assert time.monotonic() - began < 60 * PATIENCE
    assert list(result.replies) == ["good1"]
    (hung,) = result.failed
    assert (hung.name, hung.state) == ("hangs1", "unable")
    assert hung.reason.startswith("no answer in 1 s")
    assert all(not alive(int(pid)) for pid in (fake / "pids").read_text().split())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_who_hangs_up_leaves_nothing_running(spawner: Spawner, fake: Path) -> None:
    transport = ssh.create(ssh.Options(ssh=str(fake / "ssh"), tree="none"))
    wanted = FanoutRequest(target="hangs[1-3]", python="/p", arguments=(), timeout=60.0)
    plan = transport.plan(wanted, spawner)

    def give_up(answered: int, missing: tuple[str, ...]) -> None:
        deadline = time.monotonic() + 60 * PATIENCE
        while len(begun()) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        raise KeyboardInterrupt

    def begun() -> list[int]:
        return (
            [int(pid) for pid in (fake / "pids").read_text().split()]
            if (fake / "pids").exists()
            else []
        )

    with pytest.raises(KeyboardInterrupt):
        ask_all(spawner, plan, transport, give_up)
    pids = begun()
    assert len(pids) == 3
    deadline = time.monotonic() + 20 * PATIENCE
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if alive(pid)]


def test_the_remote_words_are_plain_and_bounded(spawner: Spawner, fake: Path) -> None:
    replies_of(spawner, fake, "nothing7")
    assert (
        fake / "asked"
    ).read_text() == "nothing7 timeout -k 5 10 /opt/py -m mldebug dump --send\n"


def test_a_node_speaks_for_itself_alone(spawner: Spawner, fake: Path) -> None:
    """Whatever name stands in the lines: they came over the connection to this one."""
    other = next(iter(replies(run(1, 8)).values()))
    (fake / "answer").write_bytes(
        b"".join(encode(NodeReply(node="good2", captures=other.captures)))
    )
    result = replies_of(spawner, fake, "good1,nothing1")

    assert list(result.replies) == ["good1"]
    assert [node.name for node in result.failed] == ["nothing1"]


@pytest.mark.parametrize(
    "hosts", ["", "a $b", "-oProxyCommand=x", "x;rm", "node[1-", "x[0-999999]"]
)
def test_what_is_no_list_of_hosts_is_refused(spawner: Spawner, hosts: str) -> None:
    wanted = FanoutRequest(target=hosts, python="/p", arguments=(), timeout=1.0)
    with pytest.raises(UsageError):
        ssh.create(ssh.Options()).plan(wanted, spawner)


def test_a_tree_that_is_not_there_is_told(spawner: Spawner) -> None:
    wanted = FanoutRequest(target="a", python="/p", arguments=(), timeout=1.0)
    with pytest.raises(ToolError, match="there is no /no/topology"):
        ssh.create(ssh.Options(tree=Path("/no/topology"))).plan(wanted, spawner)


def test_a_tree_that_cannot_be_read_is_told(spawner: Spawner, fake: Path) -> None:
    (fake / "topology").write_text("nonsense")
    wanted = FanoutRequest(target="good1", python="/p", arguments=(), timeout=60.0)
    transport = ssh.create(ssh.Options(ssh=str(fake / "ssh"), tree=fake / "topology"))
    with pytest.raises(MldebugError, match="the nodes could not be asked"):
        ask_all(spawner, transport.plan(wanted, spawner), transport)


def test_progress_is_told_in_words() -> None:
    assert words(38, ("node017", "node032")) == "38 nodes have answered, 2 not yet: node[017,032]"
    assert words(1, ()) == "1 node has answered"


def test_a_terminal_is_told_and_nothing_else(tmp_path: Path) -> None:
    for terminal, quiet in ((True, False), (True, True), (False, False)):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=terminal, width=100)
        with Waiting(quiet=quiet, console=console) as progress:
            progress(1, ("a2", "a3"))
            progress(3, ())
        assert ("3 nodes have answered" in screen.getvalue()) == (terminal and not quiet)


def test_the_settings_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("transports: {ssh: {kind: ssh, fanout: 8, connect_timeout: 3s, tree: none}}")
    assert load_config(file).transports["ssh"].options == ssh.Options(
        fanout=8, connect_timeout=3.0, tree="none"
    )
    file.write_text("transports: {ssh: {kind: ssh, fanout: 0, key: x}}")
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert len(raised.value.problems) == 2


def test_a_group_of_a_site_gets_no_words_of_a_shell(tmp_path: Path) -> None:
    """Where a site has groups, ClusterShell puts their names into a command."""
    (tmp_path / "groups.conf").write_text("[Main]\ndefault: site\n[site]\nmap: echo node1 $GROUP\n")
    hosts = f"@x;touch${{IFS}}{tmp_path}/owned"
    done = subprocess.run(
        [sys.executable, "-m", "mldebug", "dump", "--ssh", "--hosts", hosts],
        check=False, capture_output=True, text=True, timeout=60,
        env=os.environ | {"CLUSTERSHELL_CFGDIR": str(tmp_path)},
    )  # fmt: skip

    assert (done.returncode, (tmp_path / "owned").exists()) == (2, False), done.stderr
    assert "is not a list of nodes" in done.stderr


def test_no_node_at_all_is_something_that_is_missing(fake: Path, tmp_path: Path) -> None:
    """Exit code 1 says that a stall was found."""
    file = tmp_path / "c.yaml"
    file.write_text(f"transports: {{ssh: {{kind: ssh, ssh: {fake}/ssh, tree: none}}}}")
    wanted = FanoutRequest(target="bare,key", python="/p", arguments=(), timeout=9.0)
    with pytest.raises(MissingError, match="Permission denied"):
        capture_all(load_config(file), "ssh", wanted, "here", lambda *_: None)


# --- Slurm -----------------------------------------------------------------------------------------

PRINTED = """ 0: slurmstepd-a1: error: execve(): /no/python: No such file or directory
srun: error: a1: task 0: Exited with exit code 2
srun: error: a[3-4]: tasks 2-3: Exited with exit code 7
3: x: No module named mldebug
srun: Force Terminated StepId=7.1""".splitlines()


def planned(jobs: str, states: str, target: str = "7") -> FanoutPlan:
    def answer(argv: tuple[str, ...]) -> Completed:
        text = {"squeue": jobs, "sinfo": states}[argv[0]]
        return Completed(argv=argv, returncode=0, stdout=text.encode())

    wanted = FanoutRequest(
        target=target, python="/opt/py", arguments=("dump", "--send"), timeout=30.0
    )
    return slurm.create(slurm.Options()).plan(wanted, FakeSpawner(answer))


def test_srun_is_called_as_the_job_needs_it() -> None:
    plan = planned(
        "7|RUNNING|a[1-4]\n",
        "a1|allocated|Unknown|none\na2|mixed|Unknown|none\na3|down*|2026-03-04T05:06:07|Not responding\na4|allocated*|Unknown|none\n",
    )

    assert plan.nodes == ("a1", "a2", "a3", "a4")
    assert plan.listed_by == "Slurm"
    assert [(node.name, node.state, node.reason) for node in plan.absent] == [
        (
            "a3",
            "down",
            "Slurm says that it is down since 2026-03-04 05:06:07, and does not answer: Not responding",
        ),
        ("a4", "down", "Slurm says that it is allocated, and does not answer"),
    ]
    for word in (
        "--overlap",
        "--gres=gpu:0",
        "--jobid=7",
        "'--nodelist=a[1-2]'",
        "--ntasks-per-node=1",
        f"--export={slurm.TRAVELS}",
    ):
        assert word in plan.order.command
    assert plan.order.command.endswith("/opt/py -m mldebug dump --send --slurm-job 7")


@pytest.mark.parametrize(
    ("jobs", "target", "words"),
    [
        ("", "7", "knows no job 7"),
        ("7|PENDING|\n", "7", "job 7 is pending: it has no nodes"),
        ("7|RUNNING|a1\n8|RUNNING|a2\n", "7", "stands for 2 jobs: 7, 8"),
        ("", "7; rm -rf /", "is no job id of Slurm"),
    ],
)
def test_what_is_no_running_job_is_refused(jobs: str, target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        planned(jobs, "", target)


def test_a_job_without_a_node_that_is_up() -> None:
    with pytest.raises(MldebugError, match="no node of job 7 is up: Slurm says that it is down"):
        planned("7|RUNNING|a1\n", "a1|down|Unknown|none\n")


def test_what_srun_says_is_told_of_each_node() -> None:
    plan = planned("7|RUNNING|a[1-4]\n", "a1|allocated\n")
    explanation = slurm.create(slurm.Options()).explain(plan, PRINTED)

    assert {name: node.reason for name, node in explanation.items()} == {
        "a1": "slurmstepd-a1: error: execve(): /no/python: No such file or directory",
        "a2": "srun: Force Terminated StepId=7.1",
        "a3": "x: No module named mldebug",
        "a4": "x: No module named mldebug",
    }
    assert explanation["a4"].way_out == "install mldebug there, or name its Python with --python"


def test_what_srun_says_of_all_is_told_of_each(spawner: Spawner) -> None:
    plan = planned("7|RUNNING|a[1-2]\n", "")
    line = "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification"
    explanation = slurm.create(slurm.Options()).explain(plan, [line])

    assert {node.reason for node in explanation.values()} == {line}
    assert "transports: {slurm:" in explanation["a1"].way_out


def test_two_tasks_that_say_they_are_one_node_are_not_believed(spawner: Spawner) -> None:
    """One srun speaks for all nodes: whoever runs on one of them may write any name into its lines."""
    plan = planned("7|RUNNING|a[1-4]\n", "")
    collector = ReplyCollector(plan, slurm.create(slurm.Options()))
    cases = [(0, "a1"), (0, "a4"), (1, "a3"), (2, "a3"), (3, "a4")]  # task 1 is not on a3
    sent = replies(run(4, 1))
    for task, name in cases:
        for line in encode(sent[name]):
            collector.take(FanoutNews(line=f"{task}: {line.decode().strip()}"))
    result = collector.replies()

    assert sorted(result.replies) == ["a1", "a4"]
    failed = {node.name: (node.state, node.reason) for node in result.failed}
    assert failed["a3"] == ("refused", "two tasks say that they run on it")
    assert failed["a2"][0] == "unable"


def test_a_node_that_srun_cannot_start_on_may_be_down() -> None:
    """As a Slurm 22.05 says it where a node has died a moment ago."""
    plan = planned("7|RUNNING|a[1-2]\n", "")
    lines = (
        "srun: error: Task launch for StepId=7.3 failed on node a1: Communication connection failure",
        "srun: error: Application launch failed: Communication connection failure",
        "srun: Job step aborted",
    )
    explanation = slurm.create(slurm.Options()).explain(plan, lines)

    reason = "srun could not start there: Communication connection failure"
    assert (explanation["a1"].state, explanation["a1"].reason) == ("silent", reason)
    assert explanation["a2"].state == "unable"


def test_srun_that_waits_for_a_free_step_is_told() -> None:
    plan = planned("7|RUNNING|a[1-2]\n", "")
    lines = (
        "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)",
        "srun: error: Unable to create step for job 7: Job/step already completing or completed",
    )
    explanation = slurm.create(slurm.Options()).explain(plan, lines)

    assert explanation["a1"].reason == lines[0]
    assert "--overlap" in explanation["a1"].way_out
