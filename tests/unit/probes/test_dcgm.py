"""`dcgmi diag -j` of DCGM 3 and 4: what each prints, what counts, a stand-in for the program, and one that hangs or is not there."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli
from mldebug.core.errors import ExitCode
from mldebug.probes import dcgm
from mldebug.probes.baselines import shipped
from mldebug.probes.checks import NodeCheck
from mldebug.probes.dcgm import diag_check, parse_diag
from mldebug_agents.probes import node_stages
from mldebug_agents.probes.node_stages import NodeProbe, NodeRequirements
from mldebug_agents.system.spawn import Spawner

Json = dict[str, Any]


def third(*tests: Json | None) -> bytes:
    """As DCGM 3 prints it, with a line of its log before and null between."""
    report = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": list(tests)}], "version": "3.3.5"}}  # fmt: skip
    return b"Successfully ran diagnostic for group.\n" + json.dumps(report).encode()


def fourth(*tests: Json) -> bytes:
    """As DCGM 4 prints it."""
    report = {
        "DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": list(tests)}]},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": [{"entity_id": 0, "device_id": "2330"}]}],
        "metadata": {"version": "4.2.3", "Driver Version Detected": "580.82.09"},
    }  # fmt: skip
    return json.dumps(report).encode()


def of_gpu(number: int, status: str, *warnings: Json) -> Json:
    more = {"warnings": list(warnings)} if warnings else {}
    return {"entity_group": "GPU", "entity_group_id": 1, "entity_id": number, "status": status} | more  # fmt: skip


BROKEN = {"warning": "GPU 3 had uncorrectable memory errors and 1 row remappings.", "error_id": 88, "error_category": 7, "error_severity": 2}  # fmt: skip
PERSISTENCE = {"warning": "Persistence Mode: Persistence mode for GPU 0 is disabled.", "error_id": 29, "error_category": 8, "error_severity": 5}  # fmt: skip


def test_a_pass_of_both_versions_is_fine() -> None:
    old = third({"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}, None, {"name": "NVML Library", "results": [{"gpu_ids": "0,1", "status": "Pass"}]})  # fmt: skip
    new = fourth({"name": "software", "results": [of_gpu(0, "Pass"), of_gpu(1, "Pass")], "test_summary": {"status": "Pass"}})  # fmt: skip
    for output, many in ((old, 2), (new, 1)):
        check = diag_check(output, 1, "", 3.0)
        assert (check.state, check.sentence) == ("fine", f"dcgm: `dcgmi diag -r 1`: {many} tests passed")  # fmt: skip


def test_a_failure_names_test_gpu_and_reason() -> None:
    old = third({"name": "Memory", "results": [{"gpu_ids": "2", "status": "Pass"}, {"gpu_ids": "3", "status": "Fail", "warnings": "Row remap failure"}]})  # fmt: skip
    check = diag_check(old, 2, "", 3.0)
    assert (check.state, check.sentence) == ("failed", "dcgm: `dcgmi diag -r 2`: Memory of GPU 3: Row remap failure")  # fmt: skip
    new = fourth({"name": "memory", "results": [of_gpu(2, "Pass"), of_gpu(3, "Fail", BROKEN)]})
    check = diag_check(new, 3, "", 3.0)
    assert check.state == "failed"
    assert "memory of GPU 3: GPU 3 had uncorrectable memory errors" in check.sentence


def test_a_setting_is_told_and_drains_no_node() -> None:
    new = fourth({"name": "software", "results": [of_gpu(0, "Fail", PERSISTENCE), of_gpu(1, "Pass")]})  # fmt: skip
    check = diag_check(new, 1, "", 3.0)
    assert check.state == "fine"
    assert "told: software of GPU 0: Persistence Mode" in check.sentence
    both = fourth({"name": "software", "results": [of_gpu(0, "Fail", PERSISTENCE, BROKEN)]})
    assert diag_check(both, 1, "", 3.0).state == "failed"


@pytest.mark.parametrize(
    "output",
    [b"", b"Error: unable to establish a connection to the specified host: localhost", b"{}", b"{x", b'{"DCGM Diagnostic": []}', b"[1]", fourth()],
)  # fmt: skip
def test_what_is_no_report_is_no_verdict(output: bytes) -> None:
    assert not parse_diag(output)
    assert diag_check(output, 1, "", 1.0).state == "skipped"


REPORTS = Path(__file__).parents[2] / "fixtures/dcgm"


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("3.1.0-pass.txt", "fine", "10 tests passed"),
        ("3.3.9-pass.txt", "fine", "4 tests passed"),
        ("3.3-memory-fail.txt", "failed", "Memory of GPU 1: "),
        ("3.3-runtime-error.txt", "skipped", "gave no result: The NVVS binary was not found"),
        ("4.2.3-persistence.txt", "fine", "told: software of GPU 0: Persistence Mode"),
        ("4.4-memory-fail.txt", "failed", "memory of GPU 1: GPU 1 has uncorrectable memory errors"),
        ("4.4-runtime-error.txt", "skipped", "gave no result: Detected unsupported Cuda version"),
    ],
)
def test_reports_of_several_versions(name: str, state: str, words: str) -> None:
    check = diag_check((REPORTS / name).read_bytes(), 1, "", 3.0)
    assert (check.state, words in check.sentence) == (state, True), check.sentence


def test_lines_around_the_report_do_not_hide_it() -> None:
    report = fourth({"name": "memory", "results": [of_gpu(3, "Fail", BROKEN)]})
    for output in (b"log {level: 3}\n" + report, report + b"\n\0", report + b"\nWARNING: {late}\n"):
        assert diag_check(output, 3, "", 3.0).state == "failed"
    assert parse_diag(b"{" * 5000 + report) is None  # no end of tries


def test_where_all_is_skipped_nothing_is_said_of_the_node() -> None:
    check = diag_check(fourth({"name": "pcie", "results": [of_gpu(0, "Skip")]}), 2, "", 1.0)
    assert (check.state, check.sentence) == ("skipped", "dcgm: `dcgmi diag -r 2`: DCGM skipped every test here")  # fmt: skip


# --- a stand-in for the program ----------------------------------------------------------------------


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, level: int = 1) -> NodeCheck:  # fmt: skip
    """The check that the stage makes with this program as `dcgmi`."""
    if script is not None:
        (folder / "dcgmi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "dcgmi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    probe = NodeProbe(NodeRequirements(stages=("dcgm",), dcgm=level), shipped(), lambda _: None)
    with Spawner() as spawner:
        tools = SimpleNamespace(context=SimpleNamespace(spawner=spawner))
        probe._dcgm(tools)  # type: ignore[arg-type]
    (check,) = probe.checks
    return check


def test_the_program_is_asked_for_its_json_at_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.json"
    report.write_bytes(fourth({"name": "memory", "results": [of_gpu(3, "Fail", BROKEN)]}))
    check = ran(tmp_path, monkeypatch, f'echo "$*" > {tmp_path}/asked; cat {report}; exit 226', 2)
    assert (tmp_path / "asked").read_text() == "diag -r 2 -j\n"
    assert check.state == "failed"
    assert "memory of GPU 3" in check.sentence


def test_one_that_does_not_end_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dcgm.SECONDS, 1, 0.5)
    check = ran(tmp_path, monkeypatch, "sleep 600")
    assert check.state == "failed"
    assert "had not ended after" in check.sentence


def test_where_it_is_not_installed_it_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ran(tmp_path, monkeypatch, None)
    assert (check.state, check.sentence) == ("skipped", "dcgm: dcgmi is not installed")


def test_a_level_that_loads_the_gpus_waits_for_an_idle_node() -> None:
    assert "dcgm" in node_stages.STAGES
    looked: list[int] = []
    probe = NodeProbe(NodeRequirements(stages=("dcgm",), dcgm=3), shipped(), lambda _: looked.append(1))  # fmt: skip
    probe.look(SimpleNamespace(context=SimpleNamespace(node="n")))  # type: ignore[arg-type]
    assert looked == []


# --- the verb ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "state"),
    [("Pass", ExitCode.FINE, "fine"), ("Fail", ExitCode.FOUND, "failed")],
)
def test_the_verb_judges_the_node_by_what_dcgmi_prints(
    status: str, code: ExitCode, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (BROKEN,) if status == "Fail" else ()
    report = fourth({"name": "memory", "results": [of_gpu(3, status, *broken)]})
    (tmp_path / "report.json").write_bytes(report)
    (tmp_path / "dcgmi").write_text(f"#!/bin/sh\ncat {tmp_path}/report.json\n")
    (tmp_path / "dcgmi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = CliRunner().invoke(
        cli, ["probe", "node", "--stages", "dcgm", "--json"], standalone_mode=False
    )

    found = json.loads(result.stdout)
    (check,) = found["checks"]
    assert (result.return_value, found["fit"]) == (code, code is ExitCode.FINE)
    assert (check["stage"], check["state"]) == ("dcgm", state)
    assert ("memory of GPU 3" in check["sentence"]) is (status == "Fail")
    assert bool(found["drain_reason"]) is (status == "Fail")


def test_a_number_of_thousands_of_digits_is_no_report() -> None:
    report = fourth({"name": "Memory", "results": [of_gpu(0, "Pass")]})
    assert parse_diag(report) is not None
    assert parse_diag(report.replace(b'"entity_id": 0', b'"entity_id": ' + b"1" * 5000)) is None
