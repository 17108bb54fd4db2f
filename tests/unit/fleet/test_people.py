"""Who may ask a hub what: at its socket by who it is, over TCP with the token; and its metrics, which name nobody."""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mldebug.config.fleet import FleetConfig, HubConfig
from mldebug.config.schema import AgentConfig, Config
from mldebug.core.errors import AccessError, ToolError, UsageError
from mldebug.fleet.answers.hours import HoursList
from mldebug.fleet.answers.incidents import IncidentList, SimilarIncidents
from mldebug.fleet.answers.lemons import LemonList
from mldebug.fleet.answers.node_list import NodeList
from mldebug.fleet.answers.retry import RetryAdvice
from mldebug.fleet.batches import FleetBatch, batch_of, packed
from mldebug.fleet.hub_model import ReceivedBatch
from mldebug_agents.cli.commands.fleet import fleet as fleet_verbs
from mldebug_agents.fleet.asking import ask_hub, send_to_hub
from mldebug_agents.fleet.hub import people
from mldebug_agents.fleet.hub.notes import NewNote
from mldebug_agents.fleet.hub.people import LEMONS, RETRY, SENDERS, socket_app
from mldebug_agents.fleet.hub.process import Hub
from mldebug_agents.fleet.places import (
    HOURS,
    HUB_SOCKET,
    INCIDENTS,
    JOBS,
    NODES,
    NOTES,
    SIMILAR,
    hub_dir,
)
from mldebug_agents.web import peer_credentials, peer_protocol
from mldebug_agents.web.unix_http import UnixConnection
from processes.harness import free_port
from shared.fleet.fleet_events import attempt, fault, incident, over
from shared.system.users import system_python

KEY, TOKEN = "a0123456789bcdef" * 4, "t0123456789abcdef"
PATHS = (LEMONS, JOBS, SENDERS)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for name, text in (("key", KEY), ("token", TOKEN), ("wrong", TOKEN[::-1])):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    pages = f"127.0.0.1:{free_port()}"
    return Config(
        agent=AgentConfig(state_dir=tmp_path / "state", listen=""),
        hub=HubConfig(listen="127.0.0.1:0", pages=pages, key_file=tmp_path / "key", token_file=tmp_path / "token"),
        fleet=FleetConfig(pages=f"http://{pages}", token_file=tmp_path / "token"),
    )  # fmt: skip


@pytest.fixture
def hub(config: Config) -> Iterator[Hub]:
    made = Hub(config)
    body = packed("n1", "1", [attempt(), incident(), over(fault(), fault().at + 9)], {"probe": 4})
    batch: FleetBatch = batch_of(body)
    made.intake.take(ReceivedBatch(batch, "", "10.0.0.1"))
    made.look(time.time())
    yield made
    made._servers.stop(2.0)
    made.intake.close()
    made.store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.usefixtures("hub")
def test_an_ordinary_user_reaches_the_socket(config: Config, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o711)
    place = hub_dir(config) / HUB_SOCKET
    words = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place)!r})"
    argv = ["setpriv", "--reuid=62001", "--regid=62001", "--clear-groups", system_python(), "-c", words]  # fmt: skip
    assert subprocess.run(argv, check=False, capture_output=True).returncode == 0
    config.agent.state_dir.chmod(0o700)  # a control
    assert subprocess.run(argv, check=False, capture_output=True).returncode != 0


def local(config: Config) -> Config:
    """As on the hub's machine: no address, so its socket."""
    return Config(agent=config.agent, hub=config.hub)


def get(config: Config, path: str, **headers: str) -> tuple[int, bytes]:
    link = http.client.HTTPConnection(*config.hub.pages.split(":"), timeout=20)  # type: ignore[arg-type]
    link.request("GET", path, headers=headers)
    answer = link.getresponse()
    found = answer.status, answer.read()
    link.close()
    return found


def test_an_operator_asks_at_the_socket_and_over_tcp_with_the_token(hub: Hub, config: Config) -> None:  # fmt: skip
    for asked_at in (config, local(config)):
        assert ask_hub(asked_at, LEMONS, LemonList).nodes[0].node == "n1"
        assert ask_hub(asked_at, RETRY, RetryAdvice, job="train.py").standing == "running"
        with pytest.raises(UsageError, match="no job 'nothing'"):
            ask_hub(asked_at, RETRY, RetryAdvice, job="nothing")


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nobody_is_answered_over_tcp(hub: Hub, config: Config, path: str) -> None:
    assert get(config, path)[0] == 303  # to the login
    status, body = get(config, path, Authorization=f"Bearer {TOKEN[::-1]}")
    assert status == 401
    assert b"n1" not in body


def test_a_wrong_token_is_told_in_words(hub: Hub, config: Config, tmp_path: Path) -> None:
    wrong = FleetConfig(pages=config.fleet.pages, token_file=tmp_path / "wrong")
    with pytest.raises(AccessError, match="the token is not the hub's"):
        ask_hub(Config(fleet=wrong), LEMONS, LemonList)


def test_where_no_hub_is_the_way_out_is_told(config: Config) -> None:
    for asked_at in (config, local(config)):
        with pytest.raises(ToolError, match="no hub answers") as caught:
            ask_hub(asked_at, LEMONS, LemonList)
        assert "mldebug hub" in caught.value.way_out


@pytest.mark.parametrize(("uid", "jobs"), [(1000, 1), (2000, 0)])
def test_a_user_at_the_socket_sees_his_own_jobs_alone(
    hub: Hub, config: Config, monkeypatch: pytest.MonkeyPatch, uid: int, jobs: int
) -> None:
    own = peer_credentials.PeerCredentials(pid=1, uid=uid)
    monkeypatch.setattr(peer_protocol, "peer_of", lambda _: own)
    assert len(json.loads(at_socket(config, JOBS))["jobs"]) == jobs
    for path in (LEMONS, SENDERS):
        assert "for operators" in json.loads(at_socket(config, path))["error"]


def at_socket(config: Config, path: str) -> bytes:
    link = UnixConnection(hub_dir(config), 20.0, HUB_SOCKET)
    link.request("GET", path)
    body = link.getresponse().read()
    link.close()
    return body


def test_the_page_shows_nodes_and_jobs_as_text(hub: Hub, config: Config) -> None:
    sly = attempt(job="<script>alert(1)</script>", run="r7", subject="attempt/r7/0")
    hub.intake.take(ReceivedBatch(batch_of(packed("n1", "1", [sly], {})), "", "10.0.0.1"))
    status, body = get(config, "/", Authorization=f"Bearer {TOKEN}")
    assert status == 200
    assert b"<td>n1</td>" in body
    assert b"<script>alert" not in body
    assert b"&lt;script&gt;alert" in body
    assert get(config, "/")[0] == 303


def test_a_note_is_added_by_who_may_see_the_incident_and_found_with_it(hub: Hub, config: Config) -> None:  # fmt: skip
    for asked_at, author in ((config, "an operator"), (local(config), f"user {os.getuid()}")):
        found = send_to_hub(asked_at, NOTES, NewNote(incident="i1", text=f"of {author}"), SimilarIncidents)  # fmt: skip
        assert found.incident.notes[-1].author == author
    assert ask_hub(config, INCIDENTS, IncidentList, words="operator").total == 1
    assert ask_hub(config, SIMILAR, SimilarIncidents, incident="i1").noted[-1].text == "of an operator"  # fmt: skip
    with pytest.raises(UsageError, match="no incident 'i9'"):
        send_to_hub(config, NOTES, NewNote(incident="i9", text="x"), SimilarIncidents)


def test_users_note_and_find_their_own_incidents_alone(hub: Hub, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(people, "may_see_all", lambda peer, group: False)
    with pytest.raises(UsageError, match="no incident 'i1' of yours"):
        send_to_hub(local(config), NOTES, NewNote(incident="i1", text="x"), SimilarIncidents)
    assert ask_hub(local(config), INCIDENTS, IncidentList).total == 0
    assert ask_hub(local(config), HOURS, HoursList).hours == ()
    with pytest.raises(AccessError, match="for operators"):
        ask_hub(local(config), NODES, NodeList)


@pytest.mark.parametrize(("headers", "status"), [({}, 303), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, 403)])  # fmt: skip
def test_neither_strangers_nor_pages_of_others_add_notes(hub: Hub, config: Config, headers: dict[str, str], status: int) -> None:  # fmt: skip
    link = http.client.HTTPConnection(*config.hub.pages.split(":"), timeout=20)  # type: ignore[arg-type]
    link.request("POST", NOTES, body=b'{"incident":"i1","text":"x"}', headers=headers)
    assert link.getresponse().status == status
    link.close()
    assert ask_hub(config, INCIDENTS, IncidentList).incidents[0].notes == ()


@pytest.mark.parametrize(("headers", "status"), [({}, 303), ({"Authorization": f"Bearer {TOKEN}"}, 408)])  # fmt: skip
def test_nobody_holds_a_connection_by_half_a_note(hub: Hub, config: Config, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], status: int) -> None:  # fmt: skip
    """Of a stranger nothing is waited for, of others not for ever."""
    monkeypatch.setattr(people, "PATIENCE", 0.2)
    link = http.client.HTTPConnection(*config.hub.pages.split(":"), timeout=20)  # type: ignore[arg-type]
    link.putrequest("POST", NOTES)
    for name, value in ({"Content-Length": "100"} | headers).items():
        link.putheader(name, value)
    link.endheaders(b'{"inc')
    assert link.getresponse().status == status
    link.close()


def test_a_question_that_is_wrong_is_told(hub: Hub, config: Config) -> None:
    with pytest.raises(UsageError, match="since=yesterday is no time"):
        ask_hub(config, INCIDENTS, IncidentList, since="yesterday")
    with pytest.raises(UsageError, match="not by 'moon'"):
        ask_hub(config, HOURS, HoursList, by="moon")


@pytest.mark.parametrize("path", ["/", "/incidents?words=fallen", "/incidents?since=yesterday", "/incidents?words=<b>", "/goodput", "/goodput?by=job"])  # fmt: skip
def test_pages_show_what_operators_asked_for(hub: Hub, config: Config, path: str) -> None:
    status, body = get(config, path, Authorization=f"Bearer {TOKEN}")
    assert status == 200
    text = body.decode()
    assert "<b>" not in text
    assert {"/": "train.py of ada", "/incidents?words=fallen": "fallen off the bus", "/incidents?since=yesterday": "is no time", "/incidents?words=<b>": "0 incidents fit"}.get(path, "GPU hours") in text  # fmt: skip
    assert get(config, path)[0] == 303


def test_verbs_of_the_fleet_print_lines_and_objects(hub: Hub, config: Config, tmp_path: Path) -> None:  # fmt: skip
    file = tmp_path / "fleet.yaml"
    file.write_text(f"fleet: {{pages: 'http://{config.hub.pages}', token_file: {tmp_path}/token}}")
    for words, shown in ((("jobs",), "attempt 0 of r1"), (("jobs", "nothing"), "no such job"), (("nodes",), "n1"), (("node", "n1"), "hardware_fault"), (("search", "fallen"), "fallen off the bus"), (("search", "--since", "7d", "nothing"), "no such incident"), (("similar", "i1"), "Nothing like it"), (("note", "i1", "reseated it"), "reseated it"), (("goodput",), "GPU hours")):  # fmt: skip
        done = CliRunner().invoke(fleet_verbs.group, [*words, "--config", str(file)])
        assert (done.exit_code, shown in done.output) == (0, True), done.output
        done = CliRunner().invoke(fleet_verbs.group, [*words, "--json", "--config", str(file)])
        assert isinstance(json.loads(done.output), dict)


def test_metrics_are_for_everybody_and_name_nobody(hub: Hub, config: Config) -> None:
    status, body = get(config, "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if line[0] != "#")
    assert status == 200
    assert lines["mldebug_hub_batches_total"] == "1.0"
    assert lines['mldebug_hub_events_total{outcome="stored"}'] == "3.0"
    assert lines["mldebug_hub_stored_events"] == "3.0"
    assert lines["mldebug_hub_agents_lost_events"] == "4.0"
    assert lines["mldebug_hub_store_success"] == "1.0"
    assert not [word for word in ("n1", "train", "ada") if word in body.decode()]
    assert at_socket(config, "/metrics").startswith(b"# HELP mldebug_hub_")


@pytest.mark.parametrize(("host", "agent", "status"), [
    ("evil.example", "Mozilla/5.0", 421), ("evil.example", "Prometheus/3", 200), ("127.0.0.1", "Mozilla/5.0", 200), ("localhost", "Mozilla/5.0", 200),
])  # fmt: skip
def test_a_page_that_points_its_own_name_here_gets_no_metrics(hub: Hub, config: Config, host: str, agent: str, status: int) -> None:  # fmt: skip
    assert get(config, "/metrics", **{"Host": host, "User-Agent": agent})[0] == status


def test_a_page_of_another_site_is_not_answered_at_the_socket(hub: Hub, config: Config) -> None:
    link = UnixConnection(hub_dir(config), 20.0, HUB_SOCKET)
    link.request("GET", LEMONS, headers={"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})  # fmt: skip
    assert link.getresponse().status == 403
    link.close()


def test_two_hubs_do_not_share_a_folder(hub: Hub, config: Config) -> None:
    other: Any = HubConfig(listen="127.0.0.1:0", pages="", key_file=config.hub.key_file)
    with pytest.raises(UsageError, match="another program already serves"):
        Hub(Config(agent=config.agent, hub=other))


def test_the_socket_app_is_made_of_the_questions() -> None:
    app = socket_app({}, None, {"/": None}, None, None)  # type: ignore[arg-type, dict-item]
    assert {getattr(route, "path", "") for route in app.routes} == {
        "/",
        NOTES,
        "/metrics",
        "/healthz",
        "/look.css",
        "/look.js",
    }
