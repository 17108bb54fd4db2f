"""Nobody reads what a job names but through `Reader` with the rank's rights: a new reader that opens files itself fails here.

Each module that opens, lists or follows anything has a row that says what, and why it is no job's. To add one: read the job's file with
`Reader` and `host.rights`; where a path is the kernel's, the operator's or our own, add the row.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
AGENTS = ROOT / "agents/mldebug_agents"
NAMES = frozenset({"open"})
METHODS = frozenset(
    [
        "open",
        "read_text",
        "read_bytes",
        "scandir",
        "listdir",
        "walk",
        "fwalk",
        "iterdir",
        "glob",
        "rglob",
        "readlink",
        "getxattr",
        "memfd_create",
        "open_inside",
        "walk_inside",
        "stat",
        "lstat",
        "exists",
        "is_file",
        "is_dir",
        "is_socket",
        "access",
        "statvfs",
        "rmtree",
        "mmap",
        "ZipFile",
        "chown",
        "chmod",
        "unlink",
        "connect",
        "connect_ex",
        "sendto",
        *("realpath", "resolve", "getsize", "getmtime", "getatime", "getctime", "isfile", "isdir", "islink", "ismount", "lexists"),
        *("samefile", "is_mount", "is_symlink", "is_fifo", "memmap", "TarFile", "GzipFile", "LZMAFile", "BZ2File", "is_zipfile"),
        *("is_tarfile", "copyfile", "copy2", "copytree", "rename", "renames", "symlink", "symlink_to", "hardlink_to", "mkdir"),
        *("makedirs", "rmdir", "utime", "truncate", "chdir", "chroot", "getline", "getlines", "FileIO", "listxattr", "setxattr"),
        *("mkfifo", "mknod", "iglob", "openat", "openat2", "open_unix_connection", "create_connection", "touch", "write_bytes"),
        *("write_text", "run_path", "CDLL", "posix_spawn", "execv", "execve", "read_struct", "lchown"),
    ]
)  # fmt: skip
OF_FILES = frozenset(["builtins", "glob", "os", "path", "Path", "pathlib", "posix", "shutil"])
"""Whose functions open or list paths: also where one is handed on in place of being called, or has another name."""
KERNEL, OWN, OPERATOR = (
    "files of the kernel",
    "our own files",
    "what the operator or a person names",
)
ADDRESSES = "addresses of the network, which `cluster.networks` bounds; no path"
ALLOWED: dict[str, str] = {
    "alerts/action_runner/audit.py": OWN,
    "cli/commands/completion.py": OWN,
    "cli/commands/agent/web.py": "the browser of who typed it",
    "cli/completion/answer.py": OWN,
    "cli/completion/table.py": OWN,
    "capture/nccl_ras/child.py": KERNEL,
    "capture/nccl_ras/conversation.py": "a port of this node, at which NCCL listens; no path",
    "cli/commands/capture/dump.py": "the file that a person names",
    "cli/commands/storage/checkpoints.py": "the folder that a person names",
    "cli/commands/support/demo.py": OWN,
    "hardware/fabric_manager.py": KERNEL,
    "hardware/gpu/nvml/library.py": "the driver's library, by its name alone",
    "support/doctor/clock.py": "the C library",
    "capture/inspection.py": KERNEL,
    "cluster/node_captures.py": KERNEL,
    "cluster/peers/leader.py": OWN,
    "cluster/peers/net/identity.py": OPERATOR,
    "fleet/hub/process.py": OWN,
    "fleet/stream.py": "servers that the operator names; no path",
    "fleet/hub/stores/postgresql/links.py": "the database that the operator names; no path",
    "fleet/hub/stores/sqlite.py": OWN,
    "hardware/gpu/reads.py": KERNEL,
    "hardware/gpu/vendors/amd.py": KERNEL,
    "hardware/kernel_log.py": KERNEL,
    "hardware/ports/reader.py": KERNEL,
    "hardware/zfs_pools.py": KERNEL,
    "incidents/exits/kernel_deaths.py": KERNEL,
    "agent/loop.py": OWN,
    "jobs/hook/request_child.py": "a child that has become the job's user",
    "jobs/hook/signals.py": KERNEL,
    "jobs/hook/switches.py": "a child that has become the job's user, and a folder that a person names",
    "jobs/job_start.py": OPERATOR,
    "jobs/schedulers/kubernetes.py": OPERATOR,
    "jobs/trace_start.py": "a file that the user names who runs `mldebug trace`, with his own rights",
    "probes/history/scheduled.py": OPERATOR,
    "probes/history/store.py": OWN,
    "state/database.py": OWN,
    "state/folder.py": OWN,
    "state/store.py": OWN,
    "storage/child/quota.py": OPERATOR,
    "storage/child/server.py": "mount points that the kernel names, held and not opened; folders of the configuration",
    "storage/dir_sizes/mounts.py": OPERATOR,
    "storage/dir_sizes/tree.py": OPERATOR,
    "storage/filesystems/latency.py": KERNEL,
    "storage/filesystems/mounts.py": KERNEL,
    "storage/usage/child.py": "folders that a person names to a command, with his own rights, through no link; the agent does not call it",
    "support/bundle/facts.py": OWN,
    "support/bundle/kernel_log.py": KERNEL,
    "support/bundle/packing.py": OPERATOR,
    "support/demo/agent.py": OWN,
    "support/demo/job.py": OWN,
    "support/demo/training.py": OWN,
    "support/doctor/checks.py": KERNEL,
    "support/replay/recording.py": OPERATOR,
    "support/replay/running.py": OPERATOR,
    "system/child/acl.py": "asks of what job_paths holds",
    "system/child/gpu_driver.py": KERNEL,
    "system/child/helper.py": KERNEL,
    "system/child/job_paths.py": "the one way",
    "system/child/leftovers.py": KERNEL,
    "system/child/listing.py": "below what job_paths holds",
    "system/child/pipes.py": KERNEL,
    "system/child/reader_child.py": "files of the kernel; all others by job_paths",
    "system/child/reader_writes.py": "FIFOs and sockets that job_paths holds; tables of the kernel",
    "system/host.py": KERNEL,
    "system/process/containers.py": KERNEL,
    "system/process/details.py": KERNEL,
    "system/process/held_reads.py": KERNEL,
    "system/process/proc_files.py": KERNEL,
    "system/process/rights.py": KERNEL,
    "system/process/timed_read.py": "a file that job_paths has opened",
    "system/service/usage.py": KERNEL,
    "system/service/background.py": OWN,
    "system/spawn.py": OWN,
    "watch/launcher_watch.py": OWN,
    "web/listeners.py": OWN,
    "web/access/same_origin.py": OPERATOR,
    "web/access/token_auth.py": OPERATOR,
    "capture/stacks/pyspy.py": OWN,
    "capture/stacks/pystack.py": OWN,
    "cli/completion/values/reports.py": OWN,
    "cluster/peers/net/broadcast.py": ADDRESSES,
    "cluster/peers/net/client.py": ADDRESSES,
    "cluster/transports/ssh.py": OPERATOR,
    "jobs/ranks/ras_address.py": "asks for a route, sends nothing",
    "state/server.py": OWN,
    "storage/dir_sizes/folders.py": OPERATOR,
    "system/service/large_blocks.py": "the C library",
    "system/service/sd_notify.py": OPERATOR,
    "web/relay.py": KERNEL,
    "web/unix_http.py": OWN,
}
PERSON = (
    "files that a person names to a command, which runs with his rights; the agent does not call it"
)
MINE = "in folders of our own package"
ELSEWHERE: dict[str, str] = {
    "mldebug/capture/dump_folder.py": PERSON,
    "mldebug/capture/exports/packed.py": PERSON,
    "mldebug/capture/flight_recorder/files/folder.py": PERSON,
    "mldebug/capture/stacks/files.py": PERSON,
    "mldebug/capture/trace/open_files.py": PERSON,
    "mldebug/cli/commands/diagnose.py": PERSON,
    "mldebug/cli/commands/flight_recorder.py": PERSON,
    "mldebug/cli/commands/logs.py": PERSON,
    "mldebug/cli/commands/notify.py": OPERATOR,
    "mldebug/cli/commands/reports.py": PERSON,
    "mldebug/core/output_file.py": PERSON,
    "mldebug/cli/main.py": "its own standard streams",
    "mldebug/cluster/hostfile.py": PERSON,
    "mldebug/cli/help_texts.py": MINE,
    "mldebug/config/schema.py": OPERATOR,
    "mldebug/core/owned_trees.py": "reports: by O_PATH descriptors, through no link and into no mount of their owners",
    "mldebug/core/files.py": "reports: whoever owns the folder may put anything there, so no link, FIFO or size is trusted",
    "mldebug/hardware/health/thresholds.py": MINE,
    "mldebug/hardware/kernel_log/xids.py": MINE,
    "mldebug/incidents/evidence_archive.py": PERSON,
    "mldebug/incidents/report/html.py": MINE,
    "mldebug/incidents/report_entry.py": "reports, by core/files.py",
    "mldebug/incidents/report_store.py": "reports, by core/files.py",
    "mldebug/incidents/stored_evidence.py": "reports, by core/files.py",
    "mldebug/probes/baselines.py": MINE,
    "mldebug/web/frame.py": MINE,
}
"""In the other two roots, which know nothing of processes."""
WITH_OPERATORS_RIGHTS = {
    "hardware/fabric_manager.py": "settings and log of the Fabric Manager, which root alone may write",
    "jobs/ranks/known_issues.py": "/etc/hosts of the node",
    "probes/history/monitor.py": "the store of the probes",
    "storage/checkpoints/one_shot.py": "the folder that a person names, with his rights",
    "storage/checkpoints/reader.py": "patterns of the configuration, without links below their plain part",
    "storage/usage/answer.py": "checkpoints below the folder that a person names, with his rights",
    "system/child/job_paths.py": "defines them",
    "system/child/reader_child.py": "files of the kernel",
    "system/reader.py": "files of the kernel",
    "system/reader_answers.py": "no words of a user",
}
FOR_THEMSELVES = ("probes/",)  # what a person runs, in a process of its own and with his rights


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(AGENTS.rglob("*.py")):
        name = str(file.relative_to(AGENTS))
        if not name.startswith(FOR_THEMSELVES) or name.startswith("probes/history"):
            yield name, tree_of(file.read_text())


def opens(tree: ast.AST) -> bool:
    """Whether a call in it opens, lists or follows a path, or a function that does is handed on."""
    calls = [node.func for node in nodes_of(tree) if isinstance(node, ast.Call)]
    named = any(isinstance(one, ast.Name) and one.id in NAMES | METHODS for one in calls)
    called = any(isinstance(one, ast.Attribute) and one.attr in METHODS for one in calls)
    return named or called or any(map(_hands_on, nodes_of(tree)))


def _hands_on(node: ast.AST) -> bool:
    """`map(open, paths)`, `map(Path.read_text, paths)`, `getattr(os, name)`, `from os import open as look`."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name in NAMES
        case ast.Attribute(value=ast.Name(id=whose) | ast.Attribute(attr=whose), attr=name):
            return whose in OF_FILES and name in METHODS
        case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id=whose), *_]):
            return whose in OF_FILES
        case ast.ImportFrom(module=module, names=some):
            alone = (module or "").partition(".")[0] in OF_FILES
            return alone and any(one.asname and one.name in NAMES | METHODS for one in some)
    return False


def test_whoever_opens_files_has_a_row_that_says_why() -> None:
    found = {name for name, tree in _modules() if opens(tree)}
    new = found - ALLOWED.keys()
    assert not new, (
        f"{sorted(new)}: read what a job names by Reader, with host.rights; see the docstring here"
    )
    assert not ALLOWED.keys() - found, "rows that nobody needs any more"


def test_in_the_other_roots_nobody_opens_what_a_job_names() -> None:
    files = [file for root in ("mldebug", "exporters") for file in (ROOT / root).rglob("*.py")]
    found = {str(file.relative_to(ROOT)) for file in files if opens(tree_of(file.read_text()))}
    assert found == ELSEWHERE.keys(), "read what a job names in mldebug_agents, by Reader"


def test_the_agent_calls_nothing_that_is_for_a_person_s_files() -> None:
    modules = {name.removesuffix(".py").replace("/", ".") for name, why in ELSEWHERE.items() if why is PERSON}  # fmt: skip
    found = {
        (name, node.module)
        for name, tree in _modules()
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom) and node.module in modules
    }
    assert found == {
        ("cli/commands/probes/preflight.py", "mldebug.cluster.hostfile"),
        ("cluster/transports/ssh.py", "mldebug.cluster.hostfile"),  # `mldebug dump --hosts`
        ("jobs/trace_start.py", "mldebug.capture.trace.open_files"),  # a constant
        # entries of a tar that is open: a bundle that somebody replays
        ("support/replay/recording.py", "mldebug.incidents.evidence_archive"),
    }


def test_only_these_read_with_the_agent_s_own_rights() -> None:
    found = {
        name
        for name, tree in _modules()
        for node in nodes_of(tree)
        if isinstance(node, ast.Name) and node.id == "OPERATOR"
    }
    assert found == WITH_OPERATORS_RIGHTS.keys()


def test_the_rule_is_not_blind() -> None:
    """A reader as somebody might add it tomorrow."""
    for line in (
        "open(f'/proc/{pid}/root{path}')",
        "os.open(path, os.O_RDONLY)",
        "Path(path).read_text()",
        "Path(path).open()",
        "os.scandir(folder)",
        "io.open(path)",
        "list(Path(folder).glob('*'))",
        "os.stat(path)",
        "Path(path).exists()",
        "link.connect(path)",
        "os.path.getsize(path)",
        "os.path.realpath(path)",
        "Path(path).resolve()",
        "gzip.GzipFile(path)",
        "linecache.getline(path, 1)",
        "look = open",
        "list(map(open, paths))",
        "list(map(Path.read_text, paths))",
        "pool.submit(os.stat, path)",
        "partial(os.path.getmtime, path)",
        "getattr(os, name)(path)",
        "from os import open as look",
        "libc.openat2(folder, path)",
    ):
        assert opens(ast.parse(line)), line
    for line in (
        "reader.read_from(path, 0, rights=rights, max_bytes=1)",
        "stat.S_ISREG(mode)",
        "one.open",
        "os.getpid()",
    ):
        assert not opens(ast.parse(line)), line
