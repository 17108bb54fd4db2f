"""Names become other names, the same for the same, and nothing else changes."""

import time

import pytest

from mldebug.incidents.pseudonyms import Pseudonyms


def names() -> Pseudonyms:
    made = Pseudonyms()
    made.learn("node", "trn-gpu-017.acme.example")
    made.learn("user", "alice", "ubuntu")
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trn-gpu-017: hung", "node-1: hung"),
        ("TRN-GPU-017.acme.example:2049", "node-1.domain-1:2049"),
        ("trn-gpu-017 and trn-gpu-018", "node-1 and node-2"),
        ("mount nfs.acme.example:/x", "mount node-1.domain-1:/x"),
        ("a.b.acme.example, not-acme.example", "node-1.domain-1, not-domain-1"),
        ("node guid 506b:4b03:00cb:f8a4", "node guid guid-1"),
        ("serial 1654922001234", "serial serial-1"),
        ("job_trn-gpu-017_3", "job_node-1_3"),
        ("alice is not malice", "user-1 is not malice"),
        ("Ubuntu SMP", "Ubuntu SMP"),
        ("/home/bob/llm/train.py:10", "/home/user-1/folder-1/train.py:10"),
        ("/home/bob/v/lib/site-packages/torch/x.py", "/home/user-1/folder-1/folder-2/site-packages/torch/x.py"),
        ("GPU-3B7c1111-2222-3333-4444-555555555555", "GPU-00000000-0000-4000-8000-000000000001"),
        ("kubepods-pod3b7c1111_2222_3333_4444_555555555555.slice", "kubepods-pod00000000-0000-4000-8000-000000000001.slice"),
        ("boot 0123456789abcdef0123456789abcdef", "boot 00000000000000000000000000000001"),
        ("usb 1-1: SerialNumber: AB12345", "usb 1-1: SerialNumber: serial-1"),
        ("serial8250: ttyS0", "serial8250: ttyS0"),
        ("eth0 02:aa:bb:cc:dd:ee", "eth0 mac-1"),
        ("10.1.2.3:29500 and fe80::1 and 127.0.0.1 and ::1", "ip-2:29500 and ip-1 and 127.0.0.1 and ::1"),
        ("driver 580.159.04 at 0000:3b:00.0, 12:34:56", "driver 580.159.04 at 0000:3b:00.0, 12:34:56"),
        ("c10d::Reducer::finalize_backward", "c10d::Reducer::finalize_backward"),
        ("mail a.b@acme.example", "mail mail-1"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrst", "HF_TOKEN=***"),
    ],
)  # fmt: skip
def test_what_names_somebody_is_replaced_and_nothing_else(text: str, expected: str) -> None:
    assert names().text(text) == expected


def test_the_same_stays_the_same_wherever_it_stands() -> None:
    made = names()
    uuid = "3b7c1111-2222-3333-4444-555555555555"
    result = made.value({"uuid": f"GPU-{uuid}", "ranks": {"0": f"GPU-{uuid.upper()}"}})
    assert result["uuid"] == result["ranks"]["0"]
    assert made.text(f"Xid of GPU-{uuid}").endswith(result["uuid"])


def test_fields_say_what_a_word_alone_does_not() -> None:
    made = Pseudonyms()
    facts = {
        "node": "gpu",
        "nodes": ["gpu", "gpu2"],
        "user": "train",
        "kind": "gpu",
        "password": "x1",
    }
    made.learn_from(facts)
    assert made.value(facts) == {
        "node": "node-1", "nodes": ["node-1", "node-2"], "user": "user-1", "kind": "gpu", "password": "***",
    }  # fmt: skip


def test_a_name_is_learned_from_one_place_and_replaced_in_all() -> None:
    made = Pseudonyms()
    value = {
        "user": "carol",
        "argv": ["/data/carol/x.py"],
        "log": "/home/dora/my runs/log.txt",
        "by": "dora",
    }
    made.learn_from(value)
    result = made.value(value)
    assert "carol" not in str(result)
    assert "dora" not in str(result)
    assert "my runs" not in str(result)
    assert result["argv"] == ["/data/user-1/x.py"]


MOUNTS = """36 35 0:31 / /fsx rw - lustre 10.1.1.1@tcp:/fsx rw
37 35 0:32 / /mnt/smb rw - cifs //fs01.acme.example/teams/carol rw,username=carol,domain=ACME
38 35 0:33 / /data rw shared:1 - nfs4 filer7.acme.example:/vol/x rw,addr=10.3.4.5
39 35 0:34 / /c rw - ceph mon-a1:6789,mon-a2:6789:/ rw,name=k
40 35 0:35 / /s rw - fuse.sshfs erik@jump99:/x rw
"""


def test_servers_and_users_of_mounts_are_learned() -> None:
    made = Pseudonyms()
    made.learn_from(MOUNTS)
    log = (
        "nfs: server filer7 not responding; //fs01/teams of carol, ACME\\erik; jump99 mon-a1 mon-a2"
    )
    result = made.text(MOUNTS + log)
    for name in ("filer7", "fs01", "acme", "carol", "erik", "jump99", "mon-a", "10.1.1.1"):
        assert name not in result.lower(), name
    assert "nfs4" in result
    assert "@tcp:/fsx" in result


@pytest.mark.parametrize(
    "text",
    [
        "sshd[1]: Accepted publickey for NAME from 10.1.1.1 port 22; NAME",
        "pam_unix(sshd:session): session opened for user NAME(uid=1007)",
        "/fsx/users/NAME/proj/train.py",
        "/Users/NAME/x.py",
        "python ~NAME/x.py",
        "nfs: server NAME not responding, still trying",
        "CIFS: VFS: \\\\NAME has not responded in 180 seconds",
        "mount.cifs -o username=NAME,rw",
    ],
)
def test_text_that_says_who_it_names_is_believed(text: str) -> None:
    made = Pseudonyms()
    made.learn_from(text.replace("NAME", "dave.jones"))
    result = made.text(text.replace("NAME", "dave.jones") + " (dave.jones)")
    assert "dave" not in result
    assert "jones" not in result


def test_a_server_or_folder_with_an_everyday_name_does_not_take_words_out_of_all_text() -> None:
    made = Pseudonyms()
    made.learn_from("1 1 0:1 / /x rw - nfs nfs:/x rw\n/api/users/me/x /users/1000/x /users/train/x")
    assert made.text("nfs: tell me of train 1000") == "nfs: tell me of train 1000"


def test_a_command_line_in_a_list_is_read_as_one() -> None:
    made = Pseudonyms()
    argv = ["train.py", "--wandb-key", "0123456789abcdef", "--hf-token", "abcd", "--lr", "3"]
    result = made.value({"argv": argv, "words": ["a", 1]})
    assert result == {
        "argv": ["train.py", "--wandb-key", "***", "--hf-token", "***", "--lr", "3"],
        "words": ["a", 1],
    }
    assert made.counts["secret"] == 2


@pytest.mark.parametrize("seed", ["a.", "a-", "~abc", "/users/", "failed a for ", " - nfs ", "cifs:", "serial ", "a.acme.example."])  # fmt: skip
def test_time_grows_with_the_text_and_no_faster(seed: str) -> None:
    def seconds(size: int) -> float:
        text = (seed * (size // len(seed) + 1))[:size]
        made, before = names(), time.process_time()
        made.learn_from(text)
        made.text(text)
        return time.process_time() - before

    small, large = seconds(20_000), seconds(200_000)
    assert large < max(40 * small, 0.5)


def test_short_serial_numbers_are_not_taken_out_of_other_numbers() -> None:
    made = Pseudonyms()
    made.learn_from({"serial": "165"})
    assert made.text("step 165") == "step 165"
    assert made.value({"serial": "165"}) == {"serial": "serial-1"}


def test_what_was_replaced_is_not_replaced_again() -> None:
    made = names()
    once = made.text("trn-gpu-017 of alice in /home/alice/x/y.py at 10.0.0.1")
    assert made.text(once) == once


def test_four_mebibytes_of_log_take_seconds_and_not_minutes() -> None:
    line = "6,123,456789,-;eth0: link of trn-gpu-017 is down, GPU-3b7c1111-2222-3333-4444-555555555555\n"
    began = time.process_time()
    result = names().text(line * ((1 << 20) // len(line)))
    assert "trn-gpu" not in result
    assert time.process_time() - began < 10.0
