"""A link that stands in a browser's arguments, which everybody may read, counts only from a process of the user who opened it."""

import http.client
import os
from pathlib import Path

import pytest

from mldebug_agents.web.relay import client_uid
from shared.web.browser import relayed

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0
   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 3 1 0
"""
TABLE_6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0000000000000000FFFF00000100007F:C351 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1003 0
"""


def status_for(url: str, uid: int) -> int:
    """The status that a process of this user gets: a fork, since others may not read this Python."""
    host, _, path = url.removeprefix("http://").partition("/")
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.setuid(uid)
            link = http.client.HTTPConnection(host, timeout=20)
            link.request("GET", f"/{path}")
            os.write(writing, str(link.getresponse().status).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return int(file.read())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as others")
def test_a_link_of_a_browser_s_arguments_is_its_user_s_alone(tmp_path: Path) -> None:
    with relayed(tmp_path, own_only=True) as (base, links):
        assert status_for(base + links[0], uid=65534) == 403
        assert len(links) == 1  # the key is not used up
        assert status_for(base + links[0], uid=0) == 303
        assert status_for(base + links[0], uid=0) == 403  # good once
    with relayed(tmp_path) as (base, links):  # whoever has read it on this terminal
        assert status_for(base + links[0], uid=65534) == 303


def test_the_kernel_s_tables_tell_whose_a_connection_is(tmp_path: Path) -> None:
    assert client_uid(0xC350, 0x1F90, str(tmp_path)) is None
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(TABLE)
    assert client_uid(0xC350, 0x1F90, str(tmp_path)) == 1002
    assert client_uid(0xC351, 0x1F90, str(tmp_path)) is None
    (tmp_path / "net/tcp6").write_text(TABLE_6)
    assert client_uid(0xC351, 0x1F90, str(tmp_path)) == 1003
