"""Network interfaces that a probe is told to use: each back end reads its variable in its own way. And which adapters a node has."""

from pathlib import Path

import pytest

from mldebug_agents.probes.inside import process_group
from mldebug_agents.probes.inside.facts import gigabits
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


def test_the_rates_of_active_ports_are_told_and_nothing_of_others(tmp_path: Path) -> None:
    for name, state, rate in (
        ("mlx5_0", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n"),
        ("mlx5_1", "1: DOWN\n", "400 Gb/sec (4X NDR)\n"),
        ("mlx5_2", "4: ACTIVE\n", "nonsense\n"),
        ("rdmap0s6", "4: ACTIVE\n", "100 Gb/sec (4X EDR)\n"),
    ):
        folder = tmp_path / name / "ports/1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(state)
        (folder / "rate").write_text(rate)
    (tmp_path / "efa_0/ports/1").mkdir(parents=True)  # tells nothing
    assert gigabits(str(tmp_path)) == [400.0, 100.0]
    assert gigabits(str(tmp_path / "nowhere")) == []
