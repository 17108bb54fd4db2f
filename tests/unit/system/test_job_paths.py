"""Whoever names a path gets of it what he could read himself: with real users, roots, links and races, as root and as the unit's user."""

import errno
import os
import shutil
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.model import RankIdentity
from mldebug_agents.system.child.job_paths import NO_RIGHTS, OPERATOR, Rights
from mldebug_agents.system.child.listing import unpack
from mldebug_agents.system.child.reader_child import ReadOperation
from mldebug_agents.system.child.refusals import Refusal
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import hung_mount, wait_until
from shared.system.patience import PATIENCE
from shared.system.users import (
    ALICE,
    BOB,
    SECRET,
    Agent,
    homes,
    process,
    put,
    read_as,
    read_often_as,
    rights_of,
    system_python,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
AGENTS: tuple[Agent, ...] = ("root", "unit")
SHARED_GROUP = 61_299


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    with homes() as it:
        yield it


@pytest.fixture(scope="module")
def bob() -> Iterator[Rights]:
    with process(BOB, groups=(SHARED_GROUP,)) as it:
        yield rights_of(it.pid)


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> Agent:
    found: Agent = request.param
    return found


def in_root(rights: Rights, path: Path | str) -> str:
    return f"/proc/{rights.pid}/root{path}"


def test_his_own_file_and_everybody_s(top: Path, bob: Rights, agent: Agent) -> None:
    mine = put(top / "bob/train.py", "x = 1\n", BOB, 0o600)
    assert read_as(agent, in_root(bob, mine), bob).data == b"x = 1\n"
    assert read_as(agent, in_root(bob, "/etc/passwd"), bob).data
    assert read_as(agent, mine, bob).data == b"x = 1\n"  # by our own root, when he has ended


@pytest.mark.parametrize("name", ["model.py", "key"])
@pytest.mark.parametrize("operation", [ReadOperation.FILE, ReadOperation.FROM, ReadOperation.TAIL, ReadOperation.LINES])  # fmt: skip
def test_what_alice_keeps_is_not_read_for_bob(top: Path, bob: Rights, agent: Agent, name: str, operation: ReadOperation) -> None:  # fmt: skip
    """Neither a file of hers, nor one that anybody may read in a folder that nobody may enter."""
    for path in (in_root(bob, top / "alice" / name), str(top / "alice" / name)):
        content = read_as(agent, path, bob, operation)
        assert content.data == b""
        assert content.status == Refusal.NOT_REACHED


@pytest.mark.parametrize("path", ["/etc/shadow", "/root/.bash_history", "/proc/1/environ", "/dev/zero", "/proc/self/environ", "/proc/self/maps", "/proc/self/cmdline", "/proc/1/maps"])  # fmt: skip
def test_nothing_of_root_and_nothing_of_the_agent_itself(bob: Rights, agent: Agent, path: str) -> None:  # fmt: skip
    for named in (in_root(bob, path), path):
        assert read_as(agent, named, bob).data == b""


def test_links_lead_where_he_could_go(top: Path, bob: Rights, agent: Agent) -> None:
    put(top / "bob/plain", "mine\n", BOB, 0o600)
    for name, target in (("to-alice", top / "alice"), ("to-root", "/root"), ("self", "/proc/self")):
        (top / "bob" / name).unlink(missing_ok=True)
        (top / "bob" / name).symlink_to(target)
    (top / "bob/mine").unlink(missing_ok=True)
    (top / "bob/mine").symlink_to(top / "bob")
    for path in ("to-alice/model.py", "to-alice/key", "to-root/.profile", "self/environ", "self/root/etc/shadow", "self/cwd/etc/shadow", "../alice/key", "mine/../../alice/model.py"):  # fmt: skip
        assert read_as(agent, in_root(bob, top / "bob" / path), bob).data == b"", path
    assert read_as(agent, in_root(bob, top / "bob/mine/plain"), bob).data == b"mine\n"
    place = in_root(bob, top / "bob")  # below a learned place no link is followed, not even his own
    content = read_as(agent, f"{place}/mine/plain", bob, place=place)
    assert content.status == errno.ELOOP
    assert read_as(agent, f"{place}/plain", bob, place=place).data == b"mine\n"


def test_a_hard_link_keeps_its_owner(top: Path, bob: Rights, agent: Agent) -> None:
    hard = top / "bob/hard"
    hard.unlink(missing_ok=True)
    os.link(top / "alice/key", hard)
    assert read_as(agent, in_root(bob, hard), bob).status == Refusal.NOT_REACHED


def test_groups_of_files_and_folders(top: Path, bob: Rights, agent: Agent) -> None:
    group = top / "group"
    group.mkdir(exist_ok=True)
    os.chown(group, ALICE, SHARED_GROUP)
    path = put(group / "file", "ours\n", ALICE, 0o640)
    os.chown(path, ALICE, SHARED_GROUP)
    group.chmod(0o750)
    assert read_as(agent, in_root(bob, path), bob).data == b"ours\n"
    group.chmod(0o701)  # the group's bits count for its members, as in the kernel
    assert read_as(agent, in_root(bob, path), bob).status == Refusal.NOT_REACHED
    group.chmod(0o755)
    path.chmod(0o604)
    assert read_as(agent, in_root(bob, path), bob).status == Refusal.NOT_REACHED


def entries(*rows: tuple[int, int, int]) -> bytes:
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


ANY = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("rows", "allowed"),
    [
        (((1, 7, ANY), (2, 5, BOB), (4, 0, ANY), (0x10, 7, ANY), (0x20, 0, ANY)), True),
        (((1, 7, ANY), (2, 5, BOB), (4, 0, ANY), (0x10, 0, ANY), (0x20, 0, ANY)), False),  # the mask
        (((1, 7, ANY), (2, 0, BOB), (4, 5, ANY), (0x10, 7, ANY), (0x20, 5, ANY)), False),  # denied
        (((1, 7, ANY), (4, 0, ANY), (8, 5, SHARED_GROUP), (0x10, 7, ANY), (0x20, 0, ANY)), True),
        (((1, 7, ANY), (4, 0, ANY), (8, 0, SHARED_GROUP), (0x10, 7, ANY), (0x20, 5, ANY)), False),
        (((1, 7, ANY), (2, 5, ALICE), (4, 5, ANY), (0x10, 7, ANY), (0x20, 0, ANY)), False),
    ],
)  # fmt: skip
def test_access_lists_say_the_same_to_both_agents(top: Path, bob: Rights, agent: Agent, rows: tuple[tuple[int, int, int], ...], allowed: bool) -> None:  # fmt: skip
    folder = top / "listed"
    folder.mkdir(exist_ok=True)
    path = put(folder / "file", "listed\n", ALICE, 0o644)
    try:
        os.setxattr(folder, "system.posix_acl_access", entries(*rows))
    except OSError as error:
        pytest.skip(f"this file system keeps no access lists: {error}")
    assert (read_as(agent, in_root(bob, path), bob).data == b"listed\n") is allowed


def test_odd_paths(top: Path, bob: Rights, agent: Agent) -> None:
    """Relative, of a working folder that is gone, too long, no file at all."""
    folder = top / "bob/odd"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        for name in ("fifo", "socket", ""):
            assert read_as(agent, in_root(bob, folder / name), bob).status == Refusal.NOT_REGULAR
    for path in ("etc/passwd", "", "../etc/passwd", f"{folder} (deleted)/file", "/proc/2/cwd/etc/shadow", f"/{'x' * 300}", "/" + "x/" * 3000):  # fmt: skip
        content = read_as(agent, path, bob)
        assert (content.data, content.status != 0) == (b"", True), path


SWAPS = """import os, sys
link, shown, *targets = sys.argv[1:]
os.symlink(targets[0], shown)
print("ready", flush=True)
while True:
    for target in targets:
        os.symlink(target, link)
        os.rename(link, shown)
"""


def test_a_folder_that_changes_all_the_while(top: Path, bob: Rights, agent: Agent) -> None:
    """It is now a folder of his and now a link to Alice's: at no moment is hers read."""
    real, shown, link = top / "bob/real", top / "bob/shown", top / "bob/link"
    real.mkdir(exist_ok=True)
    put(real / "model.py", "mine\n", BOB, 0o644)
    for left in (shown, link):
        left.unlink(missing_ok=True)
    with process(0, SWAPS, str(link), str(shown), str(top / "alice"), str(real)):
        place = in_root(bob, shown / "model.py")
        datas: list[bytes] = []
        until = time.monotonic() + 60 * PATIENCE
        while len(datas) < 600 or (len(set(datas)) < 2 and time.monotonic() < until):
            datas += [one.data for one in read_often_as(agent, place, bob, 60)]
    assert set(datas) <= {b"", b"mine\n"}
    assert set(datas) == {b"", b"mine\n"}, "the attack did not take place"


# --- descriptors -----------------------------------------------------------------------------------------

HOLDS = "import sys; file = open(sys.argv[1], 'a'); print('ready', flush=True); sys.stdin.read()"


def fd_of(pid: int, target: Path) -> str:
    folder = f"/proc/{pid}/fd"
    return next(f"{folder}/{fd}" for fd in os.listdir(folder) if os.readlink(f"{folder}/{fd}") == str(target))  # fmt: skip


def test_an_open_file_of_root_s_daemon_is_bob_s_only_where_he_reaches_it(top: Path, bob: Rights, agent: Agent) -> None:  # fmt: skip
    closed = top / "daemon"
    closed.mkdir(exist_ok=True)
    closed.chmod(0o700)
    hidden, shown = put(closed / "d.log", SECRET, 0, 0o644), put(top / "open.log", "his\n", BOB, 0o600)  # fmt: skip
    with process(0, HOLDS, str(hidden)) as one, process(0, HOLDS, str(shown)) as other:
        assert read_as(agent, fd_of(one.pid, hidden), bob).status == Refusal.NOT_REACHED
        assert read_as(agent, fd_of(other.pid, shown), bob).data == b"his\n"
    with process(BOB, HOLDS, str(shown)) as own:
        assert read_as(agent, fd_of(own.pid, shown), bob).data == b"his\n"


def test_what_he_got_from_root_he_may_read_only_if_its_mode_says_so(
    top: Path, agent: Agent
) -> None:
    path = put(top / "given.log", SECRET, 0, 0o600)
    with path.open("ab") as given:
        user = {"user": BOB, "group": BOB, "extra_groups": []}
        rank = subprocess.Popen(["/bin/sleep", "60"], stdout=given, **user)  # type: ignore[call-overload]
    try:
        rights = rights_of(rank.pid)
        assert read_as(agent, f"/proc/{rank.pid}/fd/1", rights).status == Refusal.NOT_REACHED
        path.chmod(0o644)
        assert read_as(agent, f"/proc/{rank.pid}/fd/1", rights).data == SECRET.encode()
    finally:
        rank.kill()
        rank.wait()


def test_the_log_of_a_container_runtime_is_known_by_the_name_that_the_kernel_gives(top: Path, agent: Agent) -> None:  # fmt: skip
    pod, other = put(top / "0.log", "of the pod\n", 0, 0o600), put(top / "r.log", SECRET, 0, 0o600)
    with process(0, HOLDS, str(pod)) as runtime, process(0, HOLDS, str(other)) as swapped:
        rights = Rights(-1, name=str(pod))
        assert read_as(agent, fd_of(runtime.pid, pod), rights).data == b"of the pod\n"
        assert read_as(agent, fd_of(swapped.pid, other), rights).status == Refusal.NOT_REACHED
        assert read_as(agent, str(other), rights).status == Refusal.NOT_REACHED


# --- folders ---------------------------------------------------------------------------------------------


def test_a_folder_is_listed_as_far_as_he_may(top: Path, bob: Rights, agent: Agent) -> None:
    folder = top / "bob/saves"
    (folder / "step_1").mkdir(parents=True, exist_ok=True)
    (folder / "hers").mkdir(exist_ok=True)
    put(folder / "hers/name", SECRET, ALICE, 0o600)
    os.chown(folder / "hers", ALICE, ALICE)
    (folder / "hers").chmod(0o700)
    content = read_as(agent, in_root(bob, top / "alice"), bob, ReadOperation.LIST)
    assert (content.data, content.status) == (b"", Refusal.NOT_REACHED)
    content = read_as(agent, in_root(bob, top / "bob"), bob, ReadOperation.LIST)
    assert content.status == 0
    request = read_as(agent, in_root(bob, folder), bob, ReadOperation.LIST)
    assert {one.path for one in unpack(request.data).entries} == {"step_1", "hers"}


# --- other roots, other users' rights --------------------------------------------------------------------

MOUNTS = ["unshare", "--mount", "--propagation", "private"]


def test_what_he_has_mounted_himself(top: Path, agent: Agent) -> None:
    """In a user namespace of his own he is root, and puts his folder over /etc: the file there is his, and no other is."""
    put(top / "bob/passwd", "his own\n", BOB, 0o600)
    script = f"mount --rbind {top}/bob /etc && exec {system_python()} -c 'import sys; print(\"ready\", flush=True); sys.stdin.read()'"  # fmt: skip
    argv = ["setpriv", f"--reuid={BOB}", f"--regid={BOB}", "--clear-groups", "unshare", "-Urm", "sh", "-c", script]  # fmt: skip
    rank = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    try:
        assert rank.stdout is not None
        if rank.stdout.readline() != b"ready\n":
            pytest.skip("users may make no namespaces here")
        rights = rights_of(rank.pid)
        assert (rights.uid, rights.everything) == (BOB, False)
        assert read_as(agent, in_root(rights, "/etc/passwd"), rights).data == b"his own\n"
        assert read_as(agent, in_root(rights, top / "alice/key"), rights).data == b""
        assert read_as(agent, in_root(rights, top / "alice/model.py"), rights).data == b""
    finally:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("before", [
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"],
    ["unshare", "--user", "--map-root-user"],
])  # fmt: skip
def test_root_without_the_capability_to_read_everything(top: Path, agent: Agent, before: list[str]) -> None:  # fmt: skip
    with process(0, before=before) as rank:
        rights = rights_of(rank.pid)
        assert (rights.uid, rights.everything) == (0, False)
        assert read_as(agent, in_root(rights, top / "alice/key"), rights).data == b""
        assert read_as(agent, in_root(rights, "/etc/passwd"), rights).data
    with process(0) as rank:
        rights = rights_of(rank.pid)
        assert rights.everything
        assert read_as(agent, in_root(rights, top / "alice/key"), rights).data == SECRET.encode()


def test_a_rank_with_a_root_of_its_own_is_not_looked_for_in_ours(top: Path) -> None:
    """A container that has ended names /root/x: that is not the node's."""
    host = Host()
    with process(BOB) as here, process(BOB, before=[*MOUNTS, "setpriv", f"--reuid={BOB}", f"--regid={BOB}", "--clear-groups"]) as away:  # fmt: skip
        ranks = []
        for one in (here, away):
            stat = host.brief(one.pid)
            assert stat is not None
            rank = RankIdentity(rank=0, world_size=1, pid=one.pid, start_ticks=stat.start_ticks, uid=BOB)  # fmt: skip
            assert host.rights.of(rank).uid == BOB
            assert host.rights.roots(rank) == [f"/proc/{one.pid}/root"]
            ranks.append(rank)
    assert [host.rights.of(rank).uid for rank in ranks] == [BOB, BOB]  # remembered
    assert host.rights.roots(ranks[0]) == ["/proc/self/root"]
    assert host.rights.roots(ranks[1]) == [
        "/proc/self/root"
    ]  # another mount namespace, but the node's root
    stranger = RankIdentity(rank=0, world_size=1, pid=ranks[0].pid, start_ticks=1, uid=BOB)
    assert host.rights.of(stranger) == NO_RIGHTS
    assert host.rights.roots(stranger) == []


def test_once_a_rank_has_ended_no_path_leads_through_the_root_of_another_process(top: Path, agent: Agent) -> None:  # fmt: skip
    """Bob may not enter /proc/PID/root of Alice's container, where all files are everybody's to read; we could."""
    inner = top / "bob/inner"
    inner.mkdir(exist_ok=True)
    put(top / "bob/public.py", "everybody's\n", BOB, 0o644)
    mount = f'mount -t tmpfs none {inner} && echo hers > {inner}/her.py && chmod -R go+rX {inner} && exec "$@"'
    start = [*MOUNTS, "sh", "-c", mount, "sh", "setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]  # fmt: skip
    with process(ALICE, before=start) as hers:
        host = Host()
        with process(BOB) as mine:
            stat = host.brief(mine.pid)
            assert stat is not None
            rank = RankIdentity(rank=0, world_size=1, pid=mine.pid, start_ticks=stat.start_ticks, uid=BOB)  # fmt: skip
            host.rights.of(rank)
        (root,), rights = host.rights.roots(rank), host.rights.of(rank)
        assert read_as(agent, f"{root}{top}/bob/public.py", rights).data == b"everybody's\n"
        for way in (f"/proc/{hers.pid}/root", f"/proc/{hers.pid}/task/{hers.pid}/root", f"//proc/{hers.pid}/root", f"/proc/{hers.pid}/cwd"):  # fmt: skip
            assert read_as(agent, f"{root}{way}{inner}/her.py", rights).data == b"", way


def test_a_folder_of_his_that_is_called_proc_is_not_the_kernel_s(top: Path, bob: Rights, agent: Agent) -> None:  # fmt: skip
    """Its `1/root` and `1/fd/3` were opened with the agent's rights, and what they lead to was looked at with his alone."""
    proc = top / "bob/proc/1"
    (proc / "fd").mkdir(parents=True, exist_ok=True)
    put(proc / "stat", "", BOB, 0o644)
    for link in (proc / "root", proc / "fd/3"):
        link.unlink(missing_ok=True)
    (proc / "root").symlink_to(top / "alice")
    (proc / "fd/3").symlink_to(top / "alice/model.py")
    for way in (proc / "root/model.py", proc / "fd/3"):
        for path in (str(way), in_root(bob, way), f"/proc/self/root{way}"):
            assert read_as(agent, path, bob).data == b"", path
    put(proc / "mine", "mine\n", BOB, 0o600)
    assert read_as(agent, str(proc / "mine"), bob).data == b"mine\n"


CHROOTED = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); print('ready', flush=True); sys.stdin.read()"  # fmt: skip


def test_the_root_of_a_dead_chroot_is_not_ours(top: Path) -> None:
    host = Host()
    with process(0, CHROOTED, str(top)) as away:
        stat = host.brief(away.pid)
        assert stat is not None
        rank = RankIdentity(rank=0, world_size=1, pid=away.pid, start_ticks=stat.start_ticks)
        host.rights.of(rank)
    assert host.rights.roots(rank) == []


def test_a_number_that_another_process_has_got_since_opens_nothing(top: Path, bob: Rights, agent: Agent) -> None:  # fmt: skip
    """He ends, and lets the number go to a process of root or of another container."""
    gone = Rights(bob.uid, bob.gid, bob.groups, bob.pid, start=bob.start + 1)
    for path in (in_root(bob, "/etc/passwd"), f"/proc/{bob.pid}/fd/0"):
        assert read_as(agent, path, gone).status in (errno.ESRCH, Refusal.NOT_REACHED)
    assert bob.start
    assert read_as(agent, in_root(bob, "/etc/passwd"), bob).data


def test_without_rights_nothing_of_a_process_opens(top: Path, bob: Rights, agent: Agent) -> None:
    path = in_root(bob, top / "bob/train.py")
    for rights in (OPERATOR, NO_RIGHTS):
        for operation in ReadOperation:
            if operation is not ReadOperation.MEMORY:
                assert read_as(agent, path, rights, operation).status == Refusal.NO_RIGHTS
        assert read_as(agent, f"/proc/{bob.pid}/fd/0", rights).status == Refusal.NO_RIGHTS


def test_a_set_user_id_program_is_closed(top: Path) -> None:
    """Bob starts it and may not look into it, so nothing of it is told but what everybody sees."""
    program = top / "asroot"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(stat.S_ISUID | 0o755)
    user = {"user": BOB, "group": BOB, "extra_groups": []}
    with subprocess.Popen([str(program), "60"], **user) as rank:  # type: ignore[call-overload]
        try:
            host = Host()
            wait_until(lambda: host.status(rank.pid).uids[:2] == (BOB, 0))
            wait_until(lambda: (host.brief(rank.pid) or stat).state == "S")  # type: ignore[union-attr]
            assert host.rights.now(rank.pid) == NO_RIGHTS
            assert host.rights.closed(rank.pid)
            found = host.process_state(rank.pid, files=True, kernel_stacks=True)
            assert found is not None
            assert (found.uid, found.state, found.files, found.io) == (BOB, "S", (), None)
            (thread,) = found.threads
            assert (thread.syscall, thread.syscall_args, thread.wchan) == ("", (), "")
        finally:
            rank.kill()
    with process(BOB, "import ctypes, sys; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print('ready', flush=True); sys.stdin.read()") as hidden:  # fmt: skip
        assert Host().rights.closed(hidden.pid)  # not dumpable
    with process(BOB) as plain:
        assert not Host().rights.closed(plain.pid)


MIXED = "import ctypes, os, sys; os.setgroups([]); os.setresgid({0}, {1}, {0}); os.setresuid({0}, {0}, {0}); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0); print('ready', flush=True); sys.stdin.read()"  # fmt: skip


def test_a_set_group_id_program_that_lets_itself_be_dumped_is_closed_as_well() -> None:
    """It has a group that Bob has not, and says of itself that he may look."""
    with process(0, MIXED.format(BOB, ALICE)) as mixed, process(0, MIXED.format(BOB, BOB)) as own:
        assert Host().rights.closed(mixed.pid)
        assert rights_of(mixed.pid) == NO_RIGHTS
        assert not Host().rights.closed(own.pid)


def test_a_mount_that_hangs_ends_with_its_deadline(tmp_path: Path) -> None:
    """It takes the reader child with it while that has the user's place, and no other read waits for it."""
    mine = Rights(os.geteuid(), os.getegid(), (), os.getpid(), everything=True)
    with Spawner() as spawner, Reader(spawner) as reader, hung_mount(tmp_path) as mount:
        (mount.source / "file").write_text("x")
        mount.hang()
        result = reader.read_file(str(mount.target / "file"), rights=mine, max_bytes=9, timeout=0.5)
        assert isinstance(result, Unreadable)
        assert result.stuck
        assert reader.read_file("/etc/passwd", rights=mine, max_bytes=1 << 20, timeout=20.0)
        mount.recover()
