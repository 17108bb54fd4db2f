"""Lines of NCCL's in a log: real ones, torn ones, and those that somebody else wrote."""

from pathlib import Path

import pytest

from mldebug.jobs.known_issues.nccl_log import (
    MAX_PEERS,
    LogWriters,
    NcclLog,
    NcclLogFacts,
    is_local,
)
from mldebug.jobs.logs.parser import MAX_NCCL, MAX_NCCL_LINE, LogParser

H200 = Path(__file__).parents[2] / "fixtures/h200"
OURS = LogWriters(node="node-2.cluster.example", pids={5776}, elsewhere=True)
ALONE = LogWriters(node="node-2", pids={5776})
US = "node-2:5776:5902 [0] "


def facts_of(*lines: str, ours: LogWriters = OURS) -> NcclLogFacts:
    """What is known after these lines."""
    log = NcclLog()
    for line in lines:
        log.add_line(line, ours)
    return log.facts()


@pytest.mark.parametrize("name", ["hang-sleep/nccl.vm.620.nccl.log", "hang-desync/nccl.vm.860.nccl.log"])  # fmt: skip
def test_a_recorded_log_of_an_h200(name: str) -> None:
    parser, log = LogParser(()), NcclLog()
    parser.feed((H200 / name).read_bytes())
    for line in parser.take_nccl():
        log.add_line(line, LogWriters(node="vm", pids={620, 860}))
    result = log.facts()
    (rank,) = result.adapters  # one process wrote it; it found no adapter
    assert result == NcclLogFacts(
        version="2.28.9", networks=("Socket",), interfaces={"eth0": "192.0.2.2"}, hosts={"192.0.2.2": "vm"}, adapters={rank: ()}
    )  # fmt: skip
    assert not parser.take_nccl()


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("NCCL INFO Using network IB", NcclLogFacts(networks=("IB",))),
        ("NCCL INFO Using network AWS Libfabric", NcclLogFacts(networks=("AWS Libfabric",))),
        ("NCCL INFO NCCL version 2.27.3+cuda12.9", NcclLogFacts(version="2.27.3")),
        ("NCCL INFO NET/Socket : Using [0]eth0:10.0.0.23<0>",
         NcclLogFacts(networks=("Socket",), interfaces={"eth0": "10.0.0.23"}, hosts={"10.0.0.23": "node-2"})),
        ("NCCL INFO NET/Socket : Using [0]enp3s0f0:10.2.64.94 [1]usb0:169.254.3.1 [2]veth1:fe80::604b:61ff:fed0:3cd7%veth1",
         NcclLogFacts(networks=("Socket",), hosts={"10.2.64.94": "node-2"},
                  interfaces={"enp3s0f0": "10.2.64.94", "usb0": "169.254.3.1", "veth1": "fe80::604b:61ff:fed0:3cd7"})),
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.2.0.4<0>",
         NcclLogFacts(interfaces={"eth0": "10.2.0.4"}, hosts={"10.2.0.4": "node-2"}, adapters={"node-2:5776": ("mlx5_0:1/IB", "mlx5_1:1/RoCE")})),
        ("NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>", NcclLogFacts(interfaces={"docker0": "172.17.0.1"})),
        ("NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'", NcclLogFacts()),
        ("NCCL WARN Connect to 10.148.3.247<56821> failed : Connection refused",
         NcclLogFacts(peers={"refused": ("10.148.3.247",)})),
        (("misc/socket.cc:484 NCCL WARN socketPollConnect: Connect to 10.1.1.9<4242> returned 111(Connection refused), "
         "exceeded error retry count (35)"), NcclLogFacts(peers={"refused": ("10.1.1.9",)})),
        ("misc/socket.cc:484 NCCL WARN Connect to 10.1.1.9<4242> returned 111(Connection refused) - retrying", NcclLogFacts()),
        (("os/linux.cc:288 (ncclOsSocketPollConnect) NCCL WARN socketPollConnect: connect to 10.1.1.9<4242> returned Connection refused, "
          "exceeded error retry count after 35 attempts"), NcclLogFacts(peers={"refused": ("10.1.1.9",)})),
        (("transport/net_ib/p2p.cc:688 (logCompletionError) NCCL WARN NET/IB: Got completion from peer 10.2.0.5<33092> with "
          "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129"), NcclLogFacts(peers={"broken": ("10.2.0.5",)})),
        ("misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.1.1.9<4242> failed : Software caused connection abort",
         NcclLogFacts(peers={"unreachable": ("10.1.1.9",)})),
        ("include/socket.h:403 NCCL WARN Connect to 10.1.1.9<1234> failed : Connection timed out", NcclLogFacts(peers={"unreachable": ("10.1.1.9",)})),
        ("misc/socket.cc:9 NCCL WARN socketPollConnect: connect to fd00::7<1234> returned No route to host, exceeded error retry count after 35 attempts",
         NcclLogFacts(peers={"unreachable": ("fd00::7",)})),
        ("misc/socket.cc:9 NCCL WARN connect to 10.1.1.9<1234> returned Connection timed out - retrying", NcclLogFacts()),
        ("misc/socket.cc:9 (fn name) NCCL WARN Connect to 10.1.1.9<1234> failed : Connection timed out", NcclLogFacts()),
        (("transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, "
         "len 0, vendor err 129 (Recv)"), NcclLogFacts(peers={"broken": ("10.2.0.5",)})),
        (("transport/net_ib/p2p.cc:648 NCCL WARN NET/IB: Got completion from peer 10.153.235.13<40554> with status="
         "IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 hca mlx5_1"),
         NcclLogFacts(peers={"broken": ("10.153.235.13",)})),
        ("NCCL WARN NET/IB: Got completion from peer node20<57713> with status=4 opcode=0 len=0 vendor err 81", NcclLogFacts()),
        ("NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 129", NcclLogFacts()),
        ("misc/socket.cc:58 NCCL WARN Net : Connection closed by remote peer node-3.local<51234>",
         NcclLogFacts(peers={"closed": ("node-3.local",)})),
        ("NCCL INFO Channel 00/24 : 0 1", NcclLogFacts()),
    ],
)  # fmt: skip
def test_a_line_of_a_rank(line: str, facts: NcclLogFacts) -> None:
    assert facts_of(US + line) == facts
    assert facts_of(f"[2026-09-09 10:46:33] {US}{line}") == facts
    assert facts_of(f"[default0]:{US}{line}") == facts


def test_a_version_may_stand_alone() -> None:
    assert facts_of("NCCL version 2.14.3+cuda11.7").version == "2.14.3"
    assert facts_of("we need NCCL version 2.14.3").version == ""


@pytest.mark.parametrize(
    "line",
    [
        "NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>",  # its head is missing
        "5902 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>",
        US + "NCCL INFO NET/Socket : Using [0]doc",
        US + "NCCL INFO NET/" + US + "NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>",
        US + "NCCL INFO Using netw",
        US + "NCCL WARN Connect to 10.148.3.247<568",
        US + "NCCL WARN Connect to <56821> failed : Connection refused",
        US + "NCCL",
        "",
        ":::: [0] NCCL WARN Net : Connection closed by remote peer x<1>",
        "x" * 100_000 + " NCCL WARN ",
    ],
)
def test_a_torn_line_tells_nothing(line: str) -> None:
    assert facts_of(line) == NcclLogFacts()


@pytest.mark.parametrize(
    ("line", "ours", "believed"),
    [
        ("node-2:5776:1 [0] NCCL INFO Using network IB", OURS, True),
        ("node-2:666:1 [0] NCCL INFO Using network IB", OURS, False),  # another job, or an earlier launch
        ("node-2.cluster:666:1 [0] NCCL INFO Using network IB", OURS, False),
        ("node-7:666:1 [0] NCCL INFO Using network IB", OURS, True),  # its ranks there are not known here
        ("node-7:666:1 [0] NCCL INFO Using network IB", ALONE, False),
        ("0f3a9c2b1d4e:5776:1 [0] NCCL INFO Using network IB", ALONE, True),  # the name of a container
    ],
)  # fmt: skip
def test_who_may_speak_for_a_job(line: str, ours: LogWriters, believed: bool) -> None:
    log = NcclLog()
    log.add_line(line, ours)
    assert (log.facts().networks == ("IB",), log.strange) == (believed, 0 if believed else 1)


def test_a_log_full_of_lies_stays_small_and_harmless() -> None:
    log = NcclLog()
    for number in range(10_000):
        log.add_line(f"{US}NCCL WARN Connect to 10.0.{number % 250}.{number}<1> failed : Connection refused", OURS)  # fmt: skip
        log.add_line(f"{US}NCCL INFO NET/Socket : Using [0]e{number}:10.0.0.1<0>", OURS)
        log.add_line(f"{US}NCCL WARN Connect to \x1b[31mred<1> failed : Connection refused", OURS)
    result = log.facts()
    assert len(result.peers["refused"]) == MAX_PEERS
    assert len(result.interfaces) <= MAX_PEERS
    assert "\x1b" not in repr(result)


@pytest.mark.parametrize(
    ("name", "address", "local"),
    [
        ("lo", "127.0.0.1", True), ("docker0", "172.17.0.1", True), ("virbr0", "192.168.122.1", True),
        ("br-0123456789ab", "172.18.0.1", True), ("usb0", "169.254.3.1", True), ("vetha1b2", "", True),
        ("eth0", "172.17.0.2", False), ("bond0", "10.0.0.1", False), ("br0", "10.0.0.1", False), ("ib0", "10.9.0.1", False),
        ("local0", "10.0.0.1", False),
    ],
)  # fmt: skip
def test_interfaces_that_lead_nowhere(name: str, address: str, local: bool) -> None:
    assert is_local(name, address) is local


# --- how they come out of a log ------------------------------------------------------------------


def test_the_parser_keeps_lines_of_nccls_in_any_chunks() -> None:
    text = f"step 1 loss 2\n{US}NCCL INFO Using network IB\r\n{US}NCCL INFO Channel 00/24 : 0 1\n".encode()
    for size in (1, 7, len(text)):
        parser = LogParser(())
        for start in range(0, len(text), size):
            parser.feed(text[start : start + size])
        assert parser.take_nccl() == [f"{US}NCCL INFO Using network IB"]


def test_the_parser_keeps_no_more_than_it_may() -> None:
    parser = LogParser(())
    line = f"{'x' * 5000}{US}NCCL INFO Using network IB\n".encode()
    parser.feed(line * 3000)
    kept = parser.take_nccl()
    assert (len(kept), max(map(len, kept))) == (MAX_NCCL, MAX_NCCL_LINE)


def test_what_was_torn_at_a_gap_is_not_joined() -> None:
    parser = LogParser(())
    parser.feed(f"{US}NCCL INFO Using net".encode())
    parser.resync()
    parser.feed(b"work Socket\n")
    assert not parser.take_nccl()
