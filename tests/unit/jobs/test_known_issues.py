"""The rules for known traps: what each is found by, and what must stay silent."""

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.known_issues.match import (
    MAX_ISSUES,
    RULES,
    SETTINGS,
    RankSoftware,
    allowed,
    find_known_issues,
    remarks,
)
from mldebug.jobs.known_issues.model import (
    JobFacts,
    NodeFacts,
    Software,
    Version,
    VersionSpan,
    parse_version,
)
from mldebug.jobs.known_issues.nccl_log import NcclLogFacts

PLAIN = NodeFacts(machine="x86_64")
ARM = NodeFacts(machine="aarch64")
RDMA = NodeFacts(machine="x86_64", rdma=("mlx5_0", "mlx5_1"))
LARGE = NodeFacts(machine="x86_64", cores=192)
AMD = NodeFacts(machine="x86_64", iommu=True, kernel_arguments=("BOOT_IMAGE=/vmlinuz", "quiet"))
FOREIGN = NcclLogFacts(interfaces={"eth0": "10.0.0.5", "docker0": "172.17.0.1"})
SOCKETS = NcclLogFacts(networks=("Socket",), interfaces={"eth0": "10.0.0.5"})


def job(ranks: int = 8, world: int = 8) -> Job:
    """A job with that many ranks on this node."""
    here = tuple(RankIdentity(rank=rank, world_size=world, pid=100 + rank) for rank in range(ranks))
    return Job(id="1a2b", name="train.py", launcher="torchrun", world_size=world, ranks=here)


def found(
    torch: str = "",
    nccl: str = "",
    *,
    world: int = 8,
    rocm: bool = False,
    node: NodeFacts = PLAIN,
    facts: NcclLogFacts | None = None,
    gpu: bool | None = None,
    cores: int = 0,
    **settings: str,
) -> dict[str, str]:
    """Names and messages of the traps of a job whose eight ranks all run the same."""
    runs = Software(torch=torch, nccl=nccl, rocm=rocm)
    ran = [
        RankSoftware(rank=rank, software=runs, settings=settings, cores=cores) for rank in range(8)
    ]
    return {
        issue.name: issue.message
        for issue in find_known_issues(job(world=world), ran, node, facts, gpu)
    }


# --- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.6.0", Version((2, 6, 0))),
        ("2.6", Version((2, 6, 0))),
        ("2.6.0+cu124", Version((2, 6, 0), local="cu124")),
        ("2.13.0a0+gitabc", Version((2, 13, 0), early=True, local="gitabc")),
        ("2.6.0a0+ecf3bae40a.nv25.01", Version((2, 6, 0), early=True, local="ecf3bae40a.nv25.01")),
        ("2.7.0.dev20250301+cu126", Version((2, 7, 0), early=True, local="cu126")),
        ("2.7.0rc3", Version((2, 7, 0), early=True)),
        ("2.6.0.post1", Version((2, 6, 0))),
        ("2.21.5", Version((2, 21, 5))),
        ("", None),
        ("unknown", None),
        ("2", None),
        ("2.6.0 and more", None),
        ("2.6.0\x1b[31m", None),
        ("².6.0", None),
        ("9" * 5000, None),
    ],
)  # fmt: skip
def test_a_version_is_read_or_not_known(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("2.5.1", False), ("2.6.0", True), ("2.6.1+cu124", True), ("2.7.0", True), ("2.7.1", False), ("2.13.0", False),
        ("2.6.0a0+git1", False), ("2.7.0a0+git1", True), ("2.7.1rc1", False), ("", False),
    ],
)  # fmt: skip
def test_a_span_holds_what_is_surely_in_it(text: str, held: bool) -> None:
    assert VersionSpan("torch", (2, 6, 0), (2, 7, 1)).holds(parse_version(text)) is held


# --- what each rule is found by ------------------------------------------------------------------

CAUGHT = [
    ("torch_device_id_hang", found("2.7.0", "2.26.2")),
    ("torch_device_id_hang", found("2.7.0.post1+cu126", "2.26.5")),
    ("nccl_abort_hang", found("2.8.0", "2.25.1")),
    ("torch_no_debug_pipe", found("2.15.0", "2.30.7")),
    ("torch_no_debug_pipe", found("2.15.0", "2.30.7", TORCH_DIST_USE_NCCL2="1")),
    ("nccl_in_process_restart", found("2.9.0", "2.28.3")),
    ("nccl_in_process_restart", found("2.9.0", "2.28.8")),
    ("nccl_2_29_2_hang", found("2.10.0", "2.29.2")),
    ("nccl_arm_hang", found("2.10.0", "2.28.9", node=ARM, world=16)),
    ("nccl_launch_blocking_hang", found("1.13.1", "2.14.3", CUDA_LAUNCH_BLOCKING="1")),
    ("nccl_nonblocking_hang", found("2.8.0", "2.26.5", TORCH_NCCL_USE_COMM_NONBLOCKING="1")),
    ("launch_blocking", found("2.8.0", "2.27.3", CUDA_LAUNCH_BLOCKING="1")),
    ("one_core", found("2.8.0", "2.27.3", node=LARGE, gpu=True, cores=1)),
    ("launch_blocking", found(CUDA_LAUNCH_BLOCKING=" 1 ")),
    ("error_handling_off", found(TORCH_NCCL_ASYNC_ERROR_HANDLING="0")),
    ("error_handling_off", found(NCCL_ASYNC_ERROR_HANDLING="0")),
    ("monitoring_off", found(TORCH_NCCL_ENABLE_MONITORING="false")),
    ("no_dump_at_timeout", found(TORCH_NCCL_DUMP_ON_TIMEOUT="0")),
    ("flight_recorder_off", found(TORCH_FR_BUFFER_SIZE="0")),
    ("flight_recorder_off", found(TORCH_NCCL_TRACE_BUFFER_SIZE="0")),
    ("blocking_wait", found(TORCH_NCCL_BLOCKING_WAIT="1")),
    ("ras_off", found("2.8.0", "2.27.3", NCCL_RAS_ENABLE="0")),
    ("ras_off", found("2.8.0", "2.24.3", gpu=True, NCCL_RAS_ENABLE="0")),
    ("debug_detail", found(TORCH_DISTRIBUTED_DEBUG="detail")),
    ("fast_paths_off", found(NCCL_P2P_DISABLE="1")),
    ("fast_paths_off", found(NCCL_SHM_DISABLE="1")),
    ("rdma_switched_off", found(node=RDMA, world=16, NCCL_IB_DISABLE="1")),
    ("rdma_switched_off", found(node=RDMA, world=16, NCCL_NET="Socket")),
    ("interface_set_to_local", found(world=16, NCCL_SOCKET_IFNAME="lo")),
    ("interface_set_to_local", found(world=16, NCCL_SOCKET_IFNAME="=docker0,virbr0")),
    ("interface_set_to_local", found(world=16, GLOO_SOCKET_IFNAME="lo")),
    ("tokenizers_fork", found("2.7.0+cpu", TOKENIZERS_PARALLELISM="true")),
    ("amd_iommu", found("2.8.0+rocm6.4", rocm=True, node=AMD)),
    ("sockets_beside_rdma", found(node=RDMA, world=16, facts=SOCKETS)),
    ("interface_of_one_node", found(world=16, facts=FOREIGN)),
    ("fewer_adapters", found(facts=NcclLogFacts(adapters={"a:1": ("mlx5_0:1/IB",), "b:2": ()}))),
    ("peer_refused", found(facts=NcclLogFacts(peers={"refused": ("10.148.3.247",)}))),
    ("peer_unreachable", found(facts=NcclLogFacts(peers={"unreachable": ("10.148.3.247",)}))),
    ("rdma_path_broken", found(facts=NcclLogFacts(peers={"broken": ("10.2.0.5",)}))),
    ("peer_closed", found(facts=NcclLogFacts(peers={"closed": ("node-3",)}))),
]
HEALTHY = [
    ("nothing is known", found()),
    ("a CPU build", found("2.7.0+cpu")),
    ("tokenizers that step aside", found(TOKENIZERS_PARALLELISM="false")),
    ("no NCCL records nothing", found("2.13.0+cpu", TORCH_FR_BUFFER_SIZE="0")),
    ("today's versions", found("2.13.0+cu130", "2.30.7", node=RDMA, world=16)),
    ("before it came", found("2.6.0+cu124", "2.21.5")),
    ("fixed", found("2.7.1", "2.26.2")),
    ("the way out is taken", found("2.7.0", "2.26.2", TORCH_NCCL_USE_COMM_NONBLOCKING="0")),
    ("the old backend", found("2.15.0", "2.30.7", TORCH_DIST_USE_NCCL2="0")),
    ("before its release", found("2.15.0a0+git12", "2.30.7")),
    ("a vendor's build at the edge", found("2.7.0a0+7c8ec84dab.nv25.03", "2.26.2")),
    ("gloo: there is no NCCL", found("2.8.0+cpu", NCCL_RAS_ENABLE="0")),
    ("gloo beside an NCCL that is loaded", found("2.8.0", "2.27.3", gpu=False, NCCL_RAS_ENABLE="0")),
    ("an NCCL before RAS", found("2.6.0", "2.23.4", NCCL_RAS_ENABLE="0")),
    ("NCCL before and after", found("2.9.0", "2.28.2") | found("2.9.0", "2.28.9")),
    ("x86", found("2.10.0", "2.28.9", world=16)),
    ("ARM on one node", found("2.10.0", "2.28.9", node=ARM)),
    ("switched the right way", found(
        CUDA_LAUNCH_BLOCKING="0", TORCH_NCCL_ASYNC_ERROR_HANDLING="1", TORCH_NCCL_ENABLE_MONITORING="1",
        TORCH_NCCL_DUMP_ON_TIMEOUT="1", TORCH_FR_BUFFER_SIZE="2000", TORCH_NCCL_BLOCKING_WAIT="0", NCCL_RAS_ENABLE="1",
        TORCH_DISTRIBUTED_DEBUG="INFO", NCCL_P2P_DISABLE="0", NCCL_IB_DISABLE="0", NCCL_SOCKET_IFNAME="",
    )),
    ("what PyTorch takes first counts", found(TORCH_NCCL_ASYNC_ERROR_HANDLING="1", NCCL_ASYNC_ERROR_HANDLING="0")),
    ("no RDMA to use", found(world=16, NCCL_IB_DISABLE="1", facts=SOCKETS)),
    ("one node needs no network", found(node=RDMA, NCCL_IB_DISABLE="1", facts=SOCKETS)),
    ("two cores", found(node=LARGE, gpu=True, cores=2)),
    ("cores that are not known", found(node=LARGE, gpu=True)),
    ("a job on CPUs", found(node=LARGE, gpu=False, cores=1)),
    ("nobody has looked for GPUs", found(node=LARGE, cores=1)),
    ("a small node", found(node=NodeFacts(cores=2), gpu=True, cores=1)),
    ("one node may use lo", found(NCCL_SOCKET_IFNAME="lo", facts=FOREIGN)),
    ("left out, not chosen", found(world=16, NCCL_SOCKET_IFNAME="^docker0,lo")),
    ("one of them leads out", found(world=16, NCCL_SOCKET_IFNAME="lo,eth0")),
    ("names that only begin so", found(world=16, NCCL_SOCKET_IFNAME="loc0") | found(world=16, NCCL_SOCKET_IFNAME="docker")),
    ("RDMA is used", found(node=RDMA, world=16, facts=NcclLogFacts(networks=("IB",)))),
    ("two communicators differ", found(node=RDMA, world=16, facts=NcclLogFacts(networks=("IB", "Socket")))),
    ("a tamed IOMMU", found(rocm=True, node=msgspec.structs.replace(AMD, kernel_arguments=("iommu=pt",)))),
    ("kernel arguments not known", found(rocm=True, node=NodeFacts(iommu=True))),
    ("an IOMMU without ROCm", found("2.8.0+cu128", "2.27.3", node=AMD)),
]  # fmt: skip


def test_a_rank_that_is_not_seen_makes_no_second_node() -> None:
    """Another user's, or one that is not there yet: LOCAL_WORLD_SIZE says how many this node has."""
    one = job(ranks=6)
    here = tuple(msgspec.structs.replace(rank, local_world_size=8) for rank in one.ranks)
    ran = [RankSoftware(rank=rank.rank, settings={"NCCL_SOCKET_IFNAME": "lo"}) for rank in here]
    assert find_known_issues(msgspec.structs.replace(one, ranks=here), ran, PLAIN) == ()
    larger = msgspec.structs.replace(one, ranks=here, world_size=16)
    assert [issue.name for issue in find_known_issues(larger, ran, PLAIN)] == [
        "interface_set_to_local"
    ]


@pytest.mark.parametrize(("name", "table"), CAUGHT)
def test_a_trap_is_found_alone(name: str, table: dict[str, str]) -> None:
    assert list(table) == [name]


def test_two_traps_at_once_are_both_told_in_the_order_of_the_rules() -> None:
    result = found("2.7.0", "2.26.2", TORCH_NCCL_USE_COMM_NONBLOCKING="1", NCCL_RAS_ENABLE="0")
    assert list(result) == ["torch_device_id_hang", "nccl_nonblocking_hang", "ras_off"]


@pytest.mark.parametrize(("why", "table"), HEALTHY)
def test_a_healthy_job_is_left_in_peace(why: str, table: dict[str, str]) -> None:
    assert not table, why


def test_every_rule_has_a_case_a_way_out_and_a_source() -> None:
    assert {rule.name for rule in RULES} == {name for name, _ in CAUGHT}
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.source.startswith("https://")
        assert rule.wrong
        assert rule.todo
        assert rule.spans or rule.check
        assert set(rule.reads) <= set(SETTINGS)


def test_a_rule_reads_no_setting_that_is_not_on_the_list() -> None:
    class Spy(dict[str, str]):
        """Notes what is asked for."""

        requests: set[str] = set()

        def __contains__(self, name: object) -> bool:
            self.requests.add(str(name))
            return True

        def get(self, name: str, default: object = None) -> str:  # type: ignore[override]
            self.requests.add(name)
            return "1"

        def __getitem__(self, name: str) -> str:
            self.requests.add(name)
            return "1"

    nccl_log_facts = NcclLogFacts(networks=("Socket",))
    versions = [(2, 7, 0), (2, 15, 0)], [(2, 14, 3), (2, 26, 2), (2, 30, 7)]
    for torch in versions[0]:
        for nccl in versions[1]:
            facts = JobFacts(
                torch=Version(torch), nccl=Version(nccl), settings=Spy(), several_nodes=True, node=RDMA, nccl_log=nccl_log_facts
            )  # fmt: skip
            for rule in RULES:
                rule.finding(facts)
    assert Spy.requests <= set(SETTINGS)
    assert len(Spy.requests) > 10


# --- a whole job ---------------------------------------------------------------------------------


def test_many_ranks_in_one_trap_are_one_finding() -> None:
    runs = Software(torch="2.7.0+cu126", nccl="2.26.2")
    (issue,) = find_known_issues(
        job(64, 64), [RankSoftware(rank=rank, software=runs) for rank in range(64)], NodeFacts()
    )
    assert issue.ranks == tuple(range(64))
    assert issue.message == (
        "PyTorch 2.7.0 and NCCL 2.26.2: a job that gives device_id to init_process_group may hang in any collective"
    )
    assert issue.line().endswith("leave device_id out")
    assert "\n" not in issue.line()


def test_where_only_some_ranks_sit_in_it_they_are_named() -> None:
    old, new = Software(torch="2.7.0", nccl="2.26.2"), Software(torch="2.8.0", nccl="2.27.3")
    ran = [RankSoftware(rank=rank, software=old if rank in (2, 5) else new) for rank in range(8)]
    (issue,) = find_known_issues(job(), ran, NodeFacts())
    assert issue.message.startswith("ranks 2,5: PyTorch 2.7.0")


def test_what_differs_from_rank_to_rank_is_bounded() -> None:
    ran = [RankSoftware(rank=rank, settings={"NCCL_SOCKET_IFNAME": "lo," * rank + "lo"}) for rank in range(64)]  # fmt: skip
    assert len(find_known_issues(job(64, 128), ran, NodeFacts())) == MAX_ISSUES


def test_the_loaded_library_counts_before_the_log() -> None:
    facts = NcclLogFacts(version="2.29.2")
    assert list(found("2.9.0", "", facts=facts)) == ["nccl_2_29_2_hang"]
    assert not found("2.9.0", "2.29.3", facts=facts)


def test_of_an_environment_only_the_list_is_kept_and_harmless() -> None:
    kept = allowed({"NCCL_NET": "So\x1b[31mcket\n" + "x" * 500, "AWS_SECRET_ACCESS_KEY": "k"})
    assert list(kept) == ["NCCL_NET"]
    assert kept["NCCL_NET"].startswith("Socket ")
    assert len(kept["NCCL_NET"]) == 80


def test_a_peer_is_told_with_its_host_where_that_is_known() -> None:
    peers = {"refused": ("10.148.3.247", "10.148.3.9", "10.148.3.8", "10.1.1.1", "10.1.1.2")}
    facts = NcclLogFacts(peers=peers, hosts={"10.148.3.247": "r10i6n5"})
    node = NodeFacts(hosts={"10.148.3.9": "r10i6n6", "10.148.3.247": "stale"})
    peer_refused = found(facts=facts, node=node)["peer_refused"]
    assert peer_refused.startswith(
        "its log says: connection refused by 10.148.3.247 (r10i6n5), 10.148.3.9 (r10i6n6), 10.148.3.8, 10.1.1.1 and 1 more: "
    )


def test_a_report_gets_them_as_notes_that_belong_to_their_ranks() -> None:
    runs = Software(nccl="2.27.3")
    ran = [
        RankSoftware(rank=rank, software=runs, settings={"NCCL_RAS_ENABLE": "0"}) for rank in (1, 2)
    ]
    (note,) = remarks(job(), find_known_issues(job(), ran, NodeFacts()))
    assert (note.kind, note.pids) == ("trap_ras_off", (101, 102))
    everybody = [msgspec.structs.replace(ran[0], rank=rank) for rank in range(800)]
    (many,) = remarks(job(800, 800), find_known_issues(job(800, 800), everybody, NodeFacts()))
    assert len(many.pids) == 32
    assert note.message.startswith(
        "known trap: ranks 1-2: NCCL 2.27.3 and NCCL_RAS_ENABLE=0: NCCL answers nobody"
    )
