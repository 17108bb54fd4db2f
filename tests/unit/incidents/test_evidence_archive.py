"""`mldebug diagnose` of what people mail: a tar, a zip, a gzip file; whole, damaged, hostile."""

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mldebug.cli import main as cli
from mldebug.core.errors import EvidenceError
from mldebug.diagnosis.diagnose import GUESSED
from mldebug.incidents import evidence_archive
from mldebug.incidents.evidence_archive import is_archive, unpacked

WAITS = """Process {pid}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    wrapper (torch/distributed/c10d_logger.py:81)
    train (train.py:40)
    <module> (train.py:60)
"""
SLEEPS = """Process {pid}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    slow_read (train.py:12)
    train (train.py:38)
    <module> (train.py:60)
"""

TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "txt.gz": gzip.compress,
    "txt.bz2": bz2.compress,
    "txt.xz": lzma.compress,
    "txt.lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
}
"""What compresses one file with all stacks in it."""


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Stacks of four ranks, of which the third sleeps."""
    folder = tmp_path / "hang"
    folder.mkdir()
    for rank in range(4):
        text = SLEEPS if rank == 2 else WAITS
        (folder / f"rank{rank}.txt").write_text(text.format(pid=100 + rank))
    return folder


def packed(dumps: Path, kind: str) -> Path:
    """The folder as one file, made by the usual means."""
    target = dumps.with_name(f"mailed.{kind}")
    if kind == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(dumps.iterdir()):
                archive.write(file, f"hang/{file.name}")
    elif kind in TEXTS:
        everything = "\n".join(file.read_text() for file in sorted(dumps.iterdir()))
        target.write_bytes(TEXTS[kind](everything.encode()))
    else:
        with tarfile.open(target, f"w:{kind.partition('.')[2]}") as tar:
            for file in sorted(dumps.iterdir()):
                tar.add(file, f"./{file.name}")
    return target


def culprits(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[int], str]:
    """The exit code, the ranks that are named and the sentence."""
    code = cli.main(["diagnose", str(path), "--json"])
    diagnosis = json.loads(capsys.readouterr().out)["diagnosis"]
    return code, [one["rank"] for one in diagnosis["culprits"]], diagnosis["summary"]


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip", *TEXTS])
def test_an_archive_is_judged_like_the_folder_in_it(
    dumps: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, ranks, summary = culprits(dumps, capsys)
    assert (code, ranks) == (1, [2])
    guess = f"; {GUESSED}" if kind in TEXTS else ""  # one text of all has no names of files
    assert culprits(packed(dumps, kind), capsys) == (code, ranks, f"{summary}{guess}")


def test_a_plain_file_is_no_archive(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert not is_archive(dumps / "rank0.txt")
    assert not is_archive(tmp_path / "empty")
    assert not is_archive(tmp_path / "absent")


def test_no_name_leads_out_and_links_are_left_out(tmp_path: Path) -> None:
    target = tmp_path / "bad.tar"
    with tarfile.open(target, "w") as tar:
        for name in ("../../out.txt", "/etc/out.txt", "in/../../out2.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("passwd")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        device = tarfile.TarInfo("device")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    with unpacked(target) as folder:
        found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())
        assert found == ["etc/out.txt", "in/out2.txt", "out.txt"]
        assert all(stat.S_ISREG(p.lstat().st_mode) for p in folder.rglob("*") if not p.is_dir())
        assert folder.is_relative_to(Path(os.environ.get("TMPDIR", "/tmp")))
    assert not folder.exists()


def test_a_link_in_a_zip_is_left_out(tmp_path: Path) -> None:
    target = tmp_path / "bad.zip"
    with zipfile.ZipFile(target, "w") as archive:
        link = zipfile.ZipInfo("passwd")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("../rank0.txt", "text")
    with unpacked(target) as folder:
        assert [one.name for one in folder.rglob("*")] == ["rank0.txt"]


def test_what_unpacks_to_too_much_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"a" * (64 << 20)))
    monkeypatch.setattr(evidence_archive, "MAX_BYTES", 4 << 20)
    with pytest.raises(EvidenceError, match="holds more than"), unpacked(bomb):
        pass
    many = tmp_path / "many.tar"
    with tarfile.open(many, "w") as tar:
        for number in range(30):
            tar.addfile(tarfile.TarInfo(f"f{number}"))
    monkeypatch.setattr(evidence_archive, "MAX_FILES", 20)
    with pytest.raises(EvidenceError, match="more than 20 files"), unpacked(many):
        pass


@pytest.mark.parametrize(
    "kind",
    ["tar.gz", "tar.bz2", "tar.xz", "zip", "txt.gz", "txt.bz2", "txt.xz", "txt.lzma"],
)
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_one_is_said_in_a_sentence(
    dumps: Path, kind: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = packed(dumps, kind)
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 4, len(data) - 4, max(1, len(data) // 12)):
        broken = data[:at] if damage == "cut" else data[:at] + b"\xff\x00\xff\x00" + data[at + 4 :]
        file.write_bytes(broken)
        code = cli.main(["diagnose", str(file)])
        err = capsys.readouterr().err
        assert "internal error" not in err, err
        assert code in (0, 1, 2)
        if damage == "cut":
            assert "cannot be unpacked" in err, (at, len(data))


def test_what_a_sum_at_the_end_shows_to_be_changed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a tar that is compressed, the sum stands behind all files, and the tar's own end before it."""
    target = tmp_path / "mailed.tar.gz"
    with tarfile.open(target, "w:gz", compresslevel=0) as tar:
        info = tarfile.TarInfo("rank0.txt")
        info.size = len(SLEEPS)
        tar.addfile(info, io.BytesIO(SLEEPS.encode()))
    data = target.read_bytes()
    assert b"slow_read" in data
    target.write_bytes(data.replace(b"slow_read", b"flow_read"))
    assert cli.main(["diagnose", str(target)]) == 2
    assert "cannot be unpacked: CRC" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "form"), [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "lz4"), (b"7z\xbc\xaf\x27\x1c", "7-Zip")]
)  # fmt: skip
def test_what_we_cannot_unpack_is_told(
    tmp_path: Path, start: bytes, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rank0.log.zst"
    file.write_bytes(start + bytes(range(200)))
    for given in (file, tmp_path):
        assert cli.main(["diagnose", str(given)]) == 2
        assert f"compressed by {form}" in capsys.readouterr().err


def test_a_zip_with_a_password_is_refused(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = packed(dumps, "zip")
    data = bytearray(file.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag "encrypted" of each entry
        place = data.find(mark)
        while place >= 0:
            data[place + at] |= 1
            place = data.find(mark, place + 4)
    file.write_bytes(data)
    assert cli.main(["diagnose", str(file)]) == 2
    err = capsys.readouterr().err
    assert "cannot be unpacked" in err
    assert "password" in err


def bomb(way: int, size: int) -> bytes:
    """A zip with one file of zeros."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", way) as archive:
        archive.writestr("rank0.txt", bytes(size))
    return made.getvalue()


def with_entries(count: int, *, long: bool = False) -> bytes:
    """A zip of one file with a table that names it this often, in the longer form with an end record of 64 bits."""
    made = bomb(zipfile.ZIP_STORED, 1)
    end, begin = made.rindex(b"PK\5\6"), made.index(b"PK\1\2")
    table = made[begin:end] * count
    if not long:
        return (
            made[:begin]
            + table
            + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(table), begin, 0)
        )
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(table), begin)
    place = struct.pack("<4sLQL", b"PK\6\7", 0, begin + len(table), 1)
    return made[:begin] + table + record + place + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)  # fmt: skip


ZIPS: dict[str, tuple[Callable[[], bytes], str]] = {
    "bzip2": (lambda: bomb(zipfile.ZIP_BZIP2, 200 << 20), "compressed by bzip2"),
    "lzma": (lambda: bomb(zipfile.ZIP_LZMA, 1), "compressed by lzma"),
    "entries": (lambda: with_entries(400_000), "a table of its files"),
    "entries, 64 bits": (lambda: with_entries(400_000, long=True), "a table of its files"),
}


@pytest.mark.parametrize("what", ZIPS)
def test_a_zip_that_is_made_up_costs_no_memory(tmp_path: Path, what: str) -> None:
    content, why = ZIPS[what]
    file = tmp_path / "x.zip"
    file.write_bytes(content())
    tracemalloc.start()
    try:
        with pytest.raises(EvidenceError, match=why), unpacked(file):
            pass
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_zip_of_64_bits_is_read_as_before(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    file.write_bytes(with_entries(1, long=True))
    with unpacked(file) as folder:
        assert [one.name for one in folder.iterdir()] == ["rank0.txt"]


def header(size: bytes, kind: bytes, name: bytes = b"f") -> bytes:
    """The 512 bytes that stand before an entry of a tar. `size`: the field's 12 bytes."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"0000600\0" + b"0000000\0" * 2
    block[124:136] = size
    block[136:157] = b"00000000000\0" + b" " * 8 + kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def octal(size: int) -> bytes:
    """A size that fits."""
    return b"%011o\0" % size


PAX = header(octal(512), b"x") + b"11 path=f1\n".ljust(512, b"\0")
LARGE_NUMBER = b"\x80" + (2**80).to_bytes(11, "big")
MADE_UP: dict[str, Callable[[], bytes]] = {
    "a pax header of 64 MiB": lambda: header(octal(64 << 20), b"x") + bytes(64 << 20),
    "a header for all of 64 MiB": lambda: header(octal(64 << 20), b"g") + bytes(64 << 20),
    "a long name of 64 MiB": lambda: header(octal(64 << 20), b"L") + bytes(64 << 20),
    "a long name after a file": lambda: header(octal(0), b"0") + header(octal(64 << 20), b"L") + bytes(64 << 20),
    "a size above all numbers": lambda: header(LARGE_NUMBER, b"x"),
    "a size above all memory": lambda: header(b"\x80" + (2**62).to_bytes(11, "big"), b"x"),
    "a file above all numbers": lambda: header(LARGE_NUMBER, b"0") + header(octal(0), b"0"),
    "5,000 headers of one file": lambda: PAX * 5000 + header(octal(0), b"0"),
    "200,000 folders": lambda: header(octal(0), b"5") * 200_000,
    "a file of 8 GiB that is skipped": lambda: header(octal((8 << 30) - 1), b"7") + bytes(1024),
    "a size of 100,000 digits": lambda: header(octal(100_017), b"x") + (b"100016 size=" + b"9" * 100_004).ljust(100_352, b"\0"),
}  # fmt: skip


@pytest.mark.parametrize("what", MADE_UP)
def test_a_tar_that_is_made_up_costs_neither_memory_nor_time(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mailed.tar.gz"
    file.write_bytes(gzip.compress(MADE_UP[what](), 1))
    tracemalloc.start()
    try:
        code = cli.main(["diagnose", str(file)])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    err = capsys.readouterr().err
    assert code == 2
    assert "internal error" not in err
    assert "way out" in err
    assert most < 48 << 20


def test_a_tar_with_long_names_and_notes_is_read_as_before(
    tmp_path: Path, dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = culprits(dumps, capsys)
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        target = tmp_path / f"long-{form}.tar"
        with tarfile.open(target, "w", format=form) as tar:
            for file in sorted(dumps.iterdir()):
                info = tar.gettarinfo(file, "/".join(["n" * 200] * 5 + [file.name]))
                info.pax_headers = {"SCHILY.xattr.user.note": "n" * 8000}
                with file.open("rb") as content:
                    tar.addfile(info, content)
        with unpacked(target) as folder:
            assert len(list(folder.rglob("*.txt"))) == 4
            while not list(folder.glob("*.txt")):
                (folder,) = folder.iterdir()
            assert culprits(folder, capsys)[:2] == wanted[:2]


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("deep", [50, 1600])
def test_folders_a_thousand_deep_are_refused_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, deep: int
) -> None:
    """Neither could they be made in one go nor removed again: an internal error, and a folder left for good."""
    monkeypatch.setattr(evidence_archive.tempfile, "tempdir", str(tmp_path))
    names = ["a/" * one + "f" for one in range(deep, 0, -400)][::-1]
    file = tmp_path / f"mailed.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            for name in names:
                archive.writestr(name, "x")
    else:
        with tarfile.open(file, "w") as tar:
            for name in names:
                entry = tarfile.TarInfo(name)
                tar.addfile(entry)
    if deep > 1000:
        with pytest.raises(EvidenceError, match="deep"), unpacked(file):
            pass
    else:
        with unpacked(file) as folder:
            assert [one.name for one in folder.rglob("*") if one.is_file()] == ["f"]
    assert [*tmp_path.iterdir()] == [file]
