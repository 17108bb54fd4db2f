"""Network interfaces that a probe is told to use: each back end reads its variable in its own way."""

import pytest

from mldebug_agents.probes.inside import process_group
from mldebug_agents.probes.inside.process_group import gloo_lacks, nccl_lacks

HERE = ["eth0", "eth1", "lo"]


@pytest.mark.parametrize("wanted", ["eth", "eth0", "=eth0", "^lo", "^=lo", "nosuch,eth1", "eth0:1", "^nosuch"])  # fmt: skip
def test_what_nccl_finds(wanted: str) -> None:
    assert nccl_lacks(wanted, HERE) == ""


@pytest.mark.parametrize("wanted", ["nosuch0", "=eth", "^eth,lo", "^e,l", "nosuch0,nosuch1"])
def test_what_nccl_does_not_find(wanted: str) -> None:
    assert nccl_lacks(wanted, HERE) == wanted


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [("eth0", ""), ("eth0,eth1", ""), ("eth0,eth7", "eth7"), ("^lo", "^lo"), ("eth", "eth")],
)
def test_gloo_needs_all_names_whole(wanted: str, missing: str) -> None:
    assert gloo_lacks(wanted, HERE) == missing


def test_only_the_variable_of_the_back_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "^lo")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    process_group.check_interfaces("cuda")
    with pytest.raises(ValueError, match=r"GLOO_SOCKET_IFNAME=\^lo: .* has no such interface: \^lo \(it has .*lo"):  # fmt: skip
        process_group.check_interfaces("cpu")
