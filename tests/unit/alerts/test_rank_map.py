"""The map of ranks that mails and chats get: what is on it, how large it may become, and how it arrives."""

import email as mails
import http.server
import io
import json
import os
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import msgspec
import pytest
from PIL import Image

from mldebug.alerts.message import message_of
from mldebug.alerts.model import (
    Alert,
    AlertEvent,
    EventMessage,
    EventState,
    MessageRefusedError,
    Severity,
)
from mldebug.alerts.rank_map import (
    LOOKS,
    MOST_NODES,
    MOST_RANKS,
    NodeRanks,
    RankMap,
    legend,
    picture,
    rank_map,
    squares,
)
from mldebug.config.schema import Config
from mldebug.core.errors import ConfigError
from mldebug.core.yaml_reader import parse
from mldebug_exporters.channels import email, slack, webhook
from shared.incidents import samples
from shared.web.webtext import HOSTILE

ALONE = RankMap(nodes=(NodeRanks(node="n", ranks="0-7", letters="wwcwwwbx"),))
TOKEN = "xoxb-t0p-s3cret"


def nodes(count: int, culprit: int | None = None) -> RankMap:
    """Nodes of 8 ranks, one of which has the culprit."""
    letters = {culprit: "wwcwwwww"} if culprit is not None else {}
    return RankMap(nodes=tuple(NodeRanks(node=f"node{n}", ranks=f"{8 * n}-{8 * n + 7}", letters=letters.get(n, "wwwwwwww")) for n in range(count)))  # fmt: skip


def message(ranks: RankMap | None = ALONE, sentence: str = "rank 2 waits for a lock") -> EventMessage:  # fmt: skip
    alert = Alert(key="incident/R1", kind="stall", severity=Severity.CRITICAL, sentence=sentence, report="R1", map=ranks)  # fmt: skip
    event = AlertEvent(alert=alert, state=EventState.FIRING, started=1_700_000_000.0)
    return message_of(event, "node1", "https://reports/{report}")


def image(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


# --- what is on it -------------------------------------------------------------------------------


def test_a_judgement_becomes_a_map_with_its_culprit() -> None:
    found = rank_map(samples.sleeping().judgement)
    assert found is not None
    letters = dict(found.cells())
    (culprit,) = (rank for rank, letter in letters.items() if letter == "c")
    blamed = samples.sleeping().judgement.diagnosis.culprits
    assert [one.rank for one in blamed] == [culprit]
    assert set(letters.values()) == {"c", "w"}
    assert legend(found).startswith(f"rank {culprit}: culprit; ranks ")


def test_a_run_of_8192_ranks_is_cut_and_its_culprit_is_on_it() -> None:
    found = rank_map(samples.huge(8192, culprit=4711).judgement)
    assert found is not None
    letters = dict(found.cells())
    assert letters[4711] == "c"
    assert len(letters) <= MOST_RANKS
    assert len(found.nodes) <= MOST_NODES
    assert found.left_out == 8192 - len(letters)
    assert len(msgspec.json.encode(found)) < 16_000
    assert "more ranks are not shown" in legend(found)


def test_one_node_with_more_ranks_than_are_shown_is_cut_too() -> None:
    made = samples.huge(4096, culprit=3).judgement
    ranks = tuple(msgspec.structs.replace(one, node="n") for one in made.ranks)
    found = rank_map(msgspec.structs.replace(made, ranks=ranks))
    assert found is not None
    assert (len(dict(found.cells())), found.left_out) == (MOST_RANKS, 4096 - MOST_RANKS)
    assert rank_map(msgspec.structs.replace(made, ranks=())) is None


def test_the_name_of_a_node_is_one_line() -> None:
    made = samples.sleeping().judgement
    ranks = tuple(msgspec.structs.replace(one, node=f"{HOSTILE}\n" * 9) for one in made.ranks)
    found = rank_map(msgspec.structs.replace(made, ranks=ranks))
    assert found is not None
    assert "\n" not in found.nodes[0].node
    assert len(found.nodes[0].node) <= 60


# --- the picture ---------------------------------------------------------------------------------


def test_the_picture_has_a_cell_of_its_colour_for_each_rank_and_frames_the_culprit() -> None:
    made = image(picture(ALONE))
    assert made.size == (8 * 36 + 4, 38)
    for rank, letter in ALONE.cells():
        assert made.getpixel((2 + 36 * rank + 6, 2 + 6)) == LOOKS[letter].fill, rank
    assert made.getpixel((2 + 36 * 2 + 1, 20)) == (255, 210, 80)
    assert made.getpixel((2 + 36 * 3 + 1, 20)) == LOOKS["w"].fill
    ink = [made.getpixel((x, y)) for x in range(2 + 36 * 3, 2 + 36 * 4 - 2) for y in range(2, 36)]
    assert (27, 31, 36) in ink, "its number"


@pytest.mark.parametrize("count", [1, 2, 8, 16, 17, 64, 128])
def test_the_picture_stays_small(count: int) -> None:
    data = picture(nodes(count, 0))
    wide, high = image(data).size
    assert len(data) < 20_000
    assert wide <= 700
    assert high <= 16 * 36 + 2


def test_ranks_with_gaps_and_large_numbers_fit_their_cells() -> None:
    odd = RankMap(nodes=(NodeRanks(node="n", ranks="3,70000-70001", letters="wcm"),))
    made = image(picture(odd))
    gaps = [made.getpixel((2 + 36 * n - 1, y)) for n in (1, 2) for y in range(38)]
    assert set(gaps) == {(255, 255, 255)}, "no digit leaves its cell"


def test_squares_are_ranks_and_of_many_ranks_nodes() -> None:
    assert squares(ALONE).splitlines() == ["🟦🟦🔴🟦🟦🟦🟨⬛ 0 …", "ranks: 🔴 culprit, ⬛ exited, 🟨 compute, 🟦 wait for others"]  # fmt: skip
    of_nodes = squares(nodes(20, 13)).splitlines()
    assert of_nodes[1] == "🟦🟦🟦🟦🟦🔴🟦🟦 node8 …"
    assert of_nodes[-1].startswith("nodes: ")
    most = squares(nodes(128, 127))
    assert sum(most.count(look.square) for look in LOOKS.values()) == 64 + 2
    assert most.count("🔴") == 2
    assert most.splitlines()[-1].startswith("nodes, not all of them: ")


# --- mail ----------------------------------------------------------------------------------------


@pytest.fixture
def smtp() -> Iterator[tuple[int, list[Message]]]:
    """A real SMTP server, and what it got."""
    if not os.environ.get("CI"):
        pytest.importorskip("aiosmtpd")
    from aiosmtpd.controller import Controller

    got: list[Message] = []

    class Handler:
        async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
            got.append(mails.message_from_bytes(envelope.content))
            return "250 OK"

    server = Controller(Handler(), hostname="127.0.0.1", port=0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        server.port = free.getsockname()[1]
    server.start()
    yield server.port, got
    server.stop()


def sent(smtp: tuple[int, list[Message]], what: EventMessage) -> Message:
    options = email.Options(server="127.0.0.1", port=smtp[0], sender="m@x.org", to=("ops@x.org",), security="none")  # fmt: skip
    email.create(options).send(what)
    return smtp[1][-1]


def test_a_mail_has_the_text_and_the_picture_inside(smtp: tuple[int, list[Message]]) -> None:
    mail = sent(smtp, message())
    kinds = [one.get_content_type() for one in mail.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png"]  # fmt: skip
    text, page, shown = (one for one in mail.walk() if not one.is_multipart())
    assert b"rank 2 waits for a lock" in text.get_payload(decode=True)  # type: ignore[operator]
    html = page.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert f'src="cid:{shown["Content-ID"][1:-1]}"' in html
    assert 'alt="rank 2: culprit; rank 7: exited; rank 6: compute; ranks 0-1,3-5: wait for others"' in html  # fmt: skip
    assert shown["Content-Disposition"].startswith("inline")
    assert shown.get_payload(decode=True) == picture(ALONE)
    assert "http" not in html.replace("https://reports/R1", ""), "nothing is loaded"


def test_a_mail_about_no_rank_is_text_alone(smtp: tuple[int, list[Message]]) -> None:
    assert sent(smtp, message(None)).get_content_type() == "text/plain"


def test_nothing_of_a_job_becomes_markup_in_a_mail(smtp: tuple[int, list[Message]]) -> None:
    odd = RankMap(nodes=(NodeRanks(node=HOSTILE, ranks="0", letters="c"),))
    mail = sent(smtp, message(odd, f"{HOSTILE}{{cid}}"))
    page = next(one for one in mail.walk() if one.get_content_type() == "text/html")
    html = page.get_payload(decode=True).decode()  # type: ignore[union-attr]
    assert html.count("<img") == 1
    assert "&lt;img src=x" in html


# --- Slack ---------------------------------------------------------------------------------------


class Api(http.server.BaseHTTPRequestHandler):
    """Answers as Slack's API does. `errors`: by method; `upload`: the address that it gives for a file."""

    calls: ClassVar[list[tuple[str, str, dict[str, str]]]] = []  # method, token, fields
    files: ClassVar[list[tuple[bytes, str | None]]] = []  # body, token
    errors: ClassVar[dict[str, str]] = {}
    upload: ClassVar[str] = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        method, token = self.path.rpartition("/")[2], self.headers.get("Authorization")
        if self.path.startswith("/upload"):
            self.files.append((body, token))
            answer = b"OK - 1"
        elif self.path.startswith("/hook"):
            self.calls.append(("hook", "", json.loads(body)))
            answer = b"ok"
        else:
            fields = {name: value for name, (value,) in parse_qs(body.decode()).items()}
            self.calls.append((method, str(token), fields))
            error = self.errors.get(method)
            result = {"ok": False, "error": error} if error else {"ok": True, "upload_url": self.upload, "file_id": "F1"}  # fmt: skip
            answer = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    base = f"http://127.0.0.1:{server.server_port}"
    Api.calls, Api.files, Api.errors, Api.upload = [], [], {}, f"{base}/upload/v1/abc"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield base
    server.shutdown()
    server.server_close()
    thread.join(30)


def bot(api: str, folder: Path) -> slack.Options:
    file = folder / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return slack.Options(token_file=file, channel="C0NF841BK", api=f"{api}/api")


def test_a_webhook_gets_squares(api: str, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{api}/hook")
    file.chmod(0o600)
    slack.create(slack.Options(url_file=file)).send(message())
    ((_, _, fields),) = Api.calls
    assert "\n🟦🟦🔴🟦🟦🟦🟨⬛ 0 …\nranks: 🔴 culprit" in fields["text"]
    slack.create(slack.Options(url_file=file)).send(message(None))
    assert "🔴" not in Api.calls[-1][2]["text"]


def test_a_bot_sends_the_picture_with_the_message_as_its_comment(api: str, tmp_path: Path) -> None:
    slack.create(bot(api, tmp_path)).send(message())
    (first, token, place), (last, _, fields) = Api.calls
    assert (first, last) == ("files.getUploadURLExternal", "files.completeUploadExternal")
    assert token == f"Bearer {TOKEN}"
    assert place["length"] == str(len(picture(ALONE)))
    assert place["alt_txt"].startswith("rank 2: culprit")
    assert Api.files == [(picture(ALONE), None)], "the upload needs no token"
    assert fields["channel_id"] == "C0NF841BK"
    assert json.loads(fields["files"]) == [{"id": "F1", "title": "ranks"}]
    assert "rank 2 waits for a lock" in fields["initial_comment"]
    assert "🔴" not in fields["initial_comment"]


def test_a_bot_without_a_picture_or_the_right_to_send_one_sends_text(api: str, tmp_path: Path) -> None:  # fmt: skip
    channel = slack.create(bot(api, tmp_path))
    channel.send(message(None))
    Api.errors = {"files.getUploadURLExternal": "missing_scope"}
    channel.send(message())
    Api.errors, Api.upload = {}, "http://stranger.invalid/upload"
    channel.send(message())
    posts = [fields for method, _, fields in Api.calls if method == "chat.postMessage"]
    assert len(posts) == 3
    assert ["🔴" in one["text"] for one in posts] == [False, True, True]
    assert Api.files == []


@pytest.mark.parametrize(
    ("error", "kind"), [("channel_not_found", OSError), ("msg_too_long", MessageRefusedError)]
)
def test_what_slack_does_not_take_is_told_without_the_token(
    api: str, tmp_path: Path, error: str, kind: type[Exception]
) -> None:
    Api.errors = {"chat.postMessage": error}
    with pytest.raises(kind, match=error) as caught:
        slack.create(bot(api, tmp_path)).send(message(None))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{kind: slack, token_file: /x}", "channel"),
        ("{kind: slack, token_file: /x, channel: '#ops'}", "channel"),
        ("{kind: slack, token_file: /x, url_file: /y, channel: C1}", "either"),
        ("{kind: slack, token_file: /x, channel: C1, api: 'ftp://x'}", "api"),
    ],
)
def test_a_bot_that_cannot_work_is_named_at_once(entry: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(f"channels:\n  ops: {entry}\n", "x.yaml", Config)


def test_a_webhook_of_your_own_gets_the_map_as_data(api: str) -> None:
    webhook.create(webhook.Options(url=f"{api}/hook")).send(message())
    fields: Any = Api.calls[-1][2]
    assert fields["map"]["nodes"] == [{"node": "n", "ranks": "0-7", "letters": "wwcwwwbx"}]
