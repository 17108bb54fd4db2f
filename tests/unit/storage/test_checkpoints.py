"""Layouts of checkpoints, as the real writers write them, and as they look when the writer died."""

import json
import os
import pickle
import re
import shutil
import time
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from mldebug.core.plugins import create_all
from mldebug.storage.checkpoints import safe_pickle
from mldebug.storage.checkpoints.completeness import BESIDE, judge, wants
from mldebug.storage.checkpoints.model import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    Completeness,
    FileEntry,
)
from mldebug.storage.checkpoints.names import (
    CheckpointPath,
    checkpoint_of,
    is_part,
    series_of,
    step_of,
)

LAYOUTS = create_all("checkpoints")
if not os.environ.get("CI"):
    for package in ("torch", "safetensors"):
        pytest.importorskip(package)
torch = import_module("torch")
distributed = import_module("torch.distributed.checkpoint")
safetensors_torch = import_module("safetensors.torch")


def look(path: Path) -> Checkpoint:
    """What the agent would know of it, with all parts that are asked for."""
    found = [path] if path.is_file() else sorted(it for it in path.rglob("*") if it.is_file())
    files = tuple(_entry(path, one) for one in found)
    beside = {
        name: (path.parent / name).read_bytes() for name in BESIDE if (path.parent / name).exists()
    }
    save = Checkpoint(name=path.name, folder=path.is_dir(), files=files, beside=beside)
    for _ in range(3):
        more = {one: _part(path, one) for one in wants(save, LAYOUTS)}
        save = Checkpoint(
            name=save.name,
            folder=save.folder,
            files=files,
            beside=beside,
            parts={**save.parts, **more},
        )
    assert wants(save, LAYOUTS) == ()
    return save


def _entry(path: Path, one: Path) -> FileEntry:
    facts = one.stat()
    return FileEntry(
        "" if one == path else str(one.relative_to(path)), facts.st_size, facts.st_mtime
    )


def _part(path: Path, one: ByteRange) -> bytes:
    with (path / one.path if one.path else path).open("rb") as file:
        file.seek(one.offset)
        data = file.read(one.size)
    return b"\n".join(sorted(set(re.findall(one.find, data)))) if one.find else data


def verdict(path: Path) -> CheckpointVerdict:
    return judge(look(path), LAYOUTS)


def cut(path: Path, by: int = 100) -> None:
    os.truncate(path, path.stat().st_size - by)


def tensors() -> dict[str, object]:
    return {"a": torch.ones(3000), "b": torch.zeros(7, 5)}


def dcp(path: Path) -> Path:
    with warnings.catch_warnings():  # that there is one process alone
        warnings.simplefilter("ignore")
        distributed.save(tensors(), storage_writer=distributed.FileSystemWriter(path), no_dist=True)
    return path


# --- single files ----------------------------------------------------------------------------------


def test_a_file_of_torch_save_is_complete_until_a_byte_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "model-10.pt"
    torch.save(tensors(), path)
    assert (verdict(path).layout, verdict(path).state) == ("torch_save", Completeness.COMPLETE)

    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 23, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert verdict(path).state is Completeness.INCOMPLETE, size
    path.write_bytes(whole + b"\0" * 50)
    assert verdict(path).state is Completeness.INCOMPLETE
    path.write_bytes(b"\0" * len(whole))  # what a crash leaves of a file whose size was known
    assert "zeros" in verdict(path).why


def test_an_old_file_of_torch_save_says_nothing_of_its_end(tmp_path: Path) -> None:
    path = tmp_path / "model-10.pt"
    torch.save(tensors(), path, _use_new_zipfile_serialization=False)
    assert verdict(path).state is Completeness.UNKNOWN
    assert "before 1.6" in verdict(path).why


def test_a_safetensors_file_is_held_against_its_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors_torch.save_file(tensors(), path, metadata={"format": "pt"})
    assert (verdict(path).layout, verdict(path).state) == ("safetensors", Completeness.COMPLETE)
    cut(path)
    assert "of 12," in verdict(path).why
    assert verdict(path).state is Completeness.INCOMPLETE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 40,
        b"\x10" + bytes(7) + b"{" * 16,
        (200).to_bytes(8, "little") + b"[" * 200,
        b"\x02" + bytes(7) + b"[]",
    ],
)
def test_an_odd_header_is_broken_and_raises_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert verdict(path).state is Completeness.INCOMPLETE


def test_a_header_that_is_too_large_to_be_read_is_unknown() -> None:
    size = 5 << 20
    save = Checkpoint(
        name="model.safetensors",
        folder=False,
        files=(FileEntry("", size * 2),),
        parts={ByteRange("", 0, 8): size.to_bytes(8, "little")},
    )
    assert wants(save, LAYOUTS) == ()
    assert judge(save, LAYOUTS).state is Completeness.UNKNOWN


# --- torch.distributed.checkpoint ------------------------------------------------------------------


def test_a_distributed_checkpoint_needs_its_index_and_all_that_it_names(tmp_path: Path) -> None:
    path = dcp(tmp_path / "step_5")
    judged = verdict(path)
    assert (judged.layout, judged.state, judged.shards) == ("distributed", Completeness.COMPLETE, 1)

    cut(path / "__0_0.distcp")
    assert "__0_0.distcp has" in verdict(path).why
    assert verdict(path).state is Completeness.INCOMPLETE
    (path / "__0_0.distcp").unlink()
    assert "1 shards missing" in verdict(path).why

    dcp(tmp_path / "step_6")
    (tmp_path / "step_6/.metadata").unlink()
    assert "no .metadata" in verdict(tmp_path / "step_6").why
    dcp(tmp_path / "step_7")
    cut(tmp_path / "step_7/.metadata", 1)
    assert ".metadata was cut off" in verdict(tmp_path / "step_7").why


def test_an_index_of_the_save_before_in_the_same_folder_proves_nothing(tmp_path: Path) -> None:
    path = dcp(tmp_path / "last")
    shard = next(path.glob("*.distcp"))
    index = path / ".metadata"
    os.utime(shard, (index.stat().st_mtime + 30,) * 2)
    judged = verdict(path)
    assert (judged.state, judged.why) == (
        Completeness.UNKNOWN,
        f"{shard.name} is younger than .metadata, which is written last",
    )
    os.utime(index, (index.stat().st_mtime + 31,) * 2)
    assert verdict(path).state is Completeness.COMPLETE


def test_an_index_that_is_not_understood_still_names_its_shards(tmp_path: Path) -> None:
    path = dcp(tmp_path / "step_5")
    (path / ".metadata").write_bytes(pickle.dumps({"x": ["__0_0.distcp", "__1_0.distcp"]}))
    assert "__1_0.distcp of 2 shards missing" in verdict(path).why


def large_index(path: Path, entries: int, shards: tuple[str, ...]) -> Path:
    """An index with as many tensors as a run of thousands of ranks has, in the real classes."""
    metadata = import_module("torch.distributed.checkpoint.metadata")
    info = import_module("torch.distributed.checkpoint.filesystem")._StorageInfo
    stored = {
        metadata.MetadataIndex(f"model.layers.{one}.mlp.weight"): info(
            shards[one % len(shards)], one * 100, 100
        )
        for one in range(entries)
    }
    result = metadata.Metadata(state_dict_metadata={}, storage_data=stored)
    path.write_bytes(pickle.dumps(result, protocol=4))
    return path


def test_a_large_index_is_searched_for_names_and_the_ends_of_shards_are_looked_at(tmp_path: Path) -> None:  # fmt: skip
    path = dcp(tmp_path / "step_5")
    shutil.copy(path / "__0_0.distcp", path / "__1_0.distcp")
    index = large_index(path / ".metadata", 30_000, ("__0_0.distcp", "__1_0.distcp"))
    assert index.stat().st_size > safe_pickle.MAX_BYTES
    judged = verdict(path)
    assert (judged.state, judged.shards, judged.why) == (Completeness.COMPLETE, 2, "")
    cut(path / "__1_0.distcp", 1)
    judged = verdict(path)
    assert judged.state is Completeness.UNKNOWN
    assert judged.why.startswith("__1_0.distcp may have been cut off")
    (path / "__1_0.distcp").unlink()
    assert "__1_0.distcp of 2 shards missing" in verdict(path).why
    assert verdict(path).state is Completeness.INCOMPLETE
    cut(index, 1)
    assert verdict(path).why == ".metadata was cut off"
    os.truncate(index, (256 << 20) + 1)
    assert verdict(path).why == ".metadata is too large to be read"


class Bomb:
    """A pickle that would run a program."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/mldebug-was-here",)


def test_no_class_of_a_pickle_is_imported_or_called(tmp_path: Path) -> None:
    path = dcp(tmp_path / "step_5")
    (path / ".metadata").write_bytes(pickle.dumps([Bomb(), "__0_0.distcp"]))
    assert verdict(path).state is Completeness.COMPLETE
    assert not Path("/tmp/mldebug-was-here").exists()
    assert [one.name for one in safe_pickle.pickled_objects(pickle.dumps(Bomb()))] == [
        "posix.system"
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04r\xff\xff\xff\x7f.",  # a memo of two thousand million
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",  # a bytearray of a terabyte
        b"\x80\x04" + b")" + b"\x85" * 100_000 + b"}" + b"\x94h\x00h\x00s.",  # a tuple 100,000 deep as a key
        b"\x80\x04.", b"", b"cos\nsystem\n", b"\x80\x04((((t.", b"\x80\x04P1\n.",
    ],
)  # fmt: skip
def test_a_hostile_pickle_costs_nothing(data: bytes) -> None:
    try:
        assert safe_pickle.pickled_objects(data) == []
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine, anything else is not


CLASS = b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n"
INFO = b"X\x0d\x00\x00\x00relative_pathX\x0c\x00\x00\x00__0_0.distcpX\x06\x00\x00\x00offsetK\x00X\x06\x00\x00\x00length"


def _doubled(steps: bytes, levels: int = 28) -> bytes:
    """A list that holds one twice that holds one twice …, as the name of a class: its text would have no end."""
    return (
        b"\x80\x02]q\x00"
        + b"".join(b"0](h%ch%ceq%c" % (n, n, n + 1) for n in range(levels))
        + steps
    )


@pytest.mark.parametrize(
    "data",
    [
        _doubled(b"X\x01\x00\x00\x00a\x93."),
        _doubled(b"q\xffX\x01\x00\x00\x00ah\xff\x93."),
        # thousands of objects that share one state without the fields that are looked up
        b"\x80\x02}q\x00(" + b"NN" * 60_000 + b"u0" + CLASS + b"q\x01" + b")\x81h\x00b0h\x01" * 30_000 + b".",
    ],
)  # fmt: skip
def test_what_a_pickle_names_often_is_not_gone_through_as_often(data: bytes) -> None:
    begun = time.thread_time()
    try:
        objects = safe_pickle.pickled_objects(data)
        assert not any(one.get("relative_path") for one in objects)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine
    assert time.thread_time() - begun < 4


@pytest.mark.parametrize("length", [b"\x8b\x88\x13\x00\x00" + b"\xff" * 4999 + b"\x7f", b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 7 + b"\x7f"])  # fmt: skip
def test_a_length_that_no_file_has_proves_nothing_and_raises_nothing(
    tmp_path: Path, length: bytes
) -> None:
    path = dcp(tmp_path / "step_5")
    (path / ".metadata").write_bytes(b"\x80\x02" + CLASS + b")\x81}(" + INFO + length + b"ub.")
    assert verdict(path).state is Completeness.COMPLETE


# --- frameworks ------------------------------------------------------------------------------------


def trainer(path: Path) -> Path:
    path.mkdir(parents=True)
    safetensors_torch.save_file({"a": torch.ones(9)}, path / "model-00001-of-00002.safetensors")
    safetensors_torch.save_file({"b": torch.ones(9)}, path / "model-00002-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    torch.save({"x": 1}, path / "optimizer.pt")
    (path / "trainer_state.json").write_text('{"global_step": 500}\n')
    return path


def test_a_trainers_folder_needs_all_shards_and_its_state(tmp_path: Path) -> None:
    path = trainer(tmp_path / "checkpoint-500")
    assert (verdict(path).layout, verdict(path).state) == ("huggingface", Completeness.COMPLETE)

    cut(path / "optimizer.pt")
    assert "optimizer.pt has no zip directory" in verdict(path).why
    torch.save({"x": 1}, path / "optimizer.pt")
    (path / "trainer_state.json").unlink()
    assert "no trainer_state.json" in verdict(path).why
    (path / "trainer_state.json").write_text('{"global_step": 5')
    assert "cut off" in verdict(path).why
    (path / "trainer_state.json").write_text("{}")
    (path / "model-00002-of-00002.safetensors").unlink()
    assert verdict(path).why == "model-00002-of-00002.safetensors is missing, which its index names"
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-0')
    judged = verdict(path)
    assert (judged.state, judged.why) == (
        Completeness.INCOMPLETE,
        "model.safetensors.index.json was cut off",
    )
    (path / "model.safetensors.index.json").unlink()
    assert verdict(path).why == "1 of 2 parts are there"
    assert verdict(trainer(tmp_path / "tmp-checkpoint-600")).state is Completeness.INCOMPLETE


def deepspeed(path: Path, ranks: int = 4) -> Path:
    path.mkdir()
    torch.save({"x": 1}, path / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        torch.save({"x": 1}, path / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return path


def test_deepspeed_is_complete_when_latest_has_come_to_it(tmp_path: Path) -> None:
    path = deepspeed(tmp_path / "global_step100")
    assert verdict(path).state is Completeness.UNKNOWN
    (tmp_path / "latest").write_text("global_step50")
    assert verdict(path).why == "`latest` still names 'global_step50'"
    (tmp_path / "latest").write_text("global_step100\n")
    assert (verdict(path).layout, verdict(path).state, verdict(path).shards) == (
        "deepspeed",
        Completeness.COMPLETE,
        5,
    )
    (path / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    assert "3 of at least 4" in verdict(path).why


def test_megatron_is_complete_when_the_tracker_has_come_to_it(tmp_path: Path) -> None:
    path = tmp_path / "iter_0000100"
    for rank in range(2):
        (path / f"mp_rank_0{rank}").mkdir(parents=True)
        torch.save({"x": 1}, path / f"mp_rank_0{rank}/model_optim_rng.pt")
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    assert verdict(path).state is Completeness.UNKNOWN
    tracker.write_text("50")
    assert verdict(path).why == "latest_checkpointed_iteration.txt still says 50"
    tracker.write_text("100")
    assert (verdict(path).layout, verdict(path).state) == ("megatron", Completeness.COMPLETE)
    cut(path / "mp_rank_01/model_optim_rng.pt")
    assert verdict(path).state is Completeness.INCOMPLETE

    shards = dcp(tmp_path / "iter_0000090")
    assert (verdict(shards).layout, verdict(shards).state) == ("megatron", Completeness.COMPLETE)
    cut(shards / "__0_0.distcp")
    assert "__0_0.distcp has" in verdict(shards).why


def test_what_was_not_listed_whole_is_neither_complete_nor_incomplete(tmp_path: Path) -> None:
    save = look(dcp(tmp_path / "step_5"))
    for files in (save.files, save.files[:1], save.files[1:]):
        part = Checkpoint(
            name=save.name, files=files, parts=save.parts, cut="permission denied for a part of it"
        )
        assert judge(part, LAYOUTS).state is Completeness.UNKNOWN
        assert judge(part, LAYOUTS).why == "permission denied for a part of it"


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/out/model-100.pt", CheckpointPath("/out", "model-100.pt")),
        ("/out/step_100/model.pt", CheckpointPath("/out", "step_100")),
        (
            "/out/iter_0000100/mp_rank_00/model_optim_rng.pt",
            CheckpointPath("/out", "iter_0000100"),
        ),
        (
            "/out/checkpoint-500/pytorch_model_fsdp_0/__0_0.distcp",
            CheckpointPath("/out", "checkpoint-500"),
        ),
        ("/out/last/__0_0.distcp", CheckpointPath("/out", "last")),
        ("/out/last/.metadata.tmp", CheckpointPath("/out", "last")),
        (
            "/out/lightning/epoch=1-step=10.ckpt",
            CheckpointPath("/out/lightning", "epoch=1-step=10.ckpt"),
        ),
        ("/out/tmp-checkpoint-5/optimizer.pt", CheckpointPath("/out", "tmp-checkpoint-5")),
        (
            "/out/checkpoint-500/global_step500/mp_rank_00_model_states.pt",
            CheckpointPath("/out", "checkpoint-500"),
        ),
        ("/data/train.pt", None),
        ("/data/shard-17.bin", None),
        ("/out/log.txt", None),
        ("/model.pt", None),
    ],
)
def test_a_written_file_tells_its_save_or_nothing(path: str, place: CheckpointPath | None) -> None:
    assert checkpoint_of(path) == place


def test_the_saves_of_a_series_have_one_shape() -> None:
    assert series_of("tmp-checkpoint-500") == series_of("checkpoint-1000") == "checkpoint-#"
    assert series_of("epoch=3-val=0.12.ckpt") == "epoch=#-val=#.ckpt"
    unsaid = (
        "checkpoint-5.pth.tar",
        "checkpoint_1_2000.pt",
        "checkpoint_1_2000-shard3.pt",
        "checkpoint_3.pt",
        "020000",
        "7.pt",
    )
    assert [step_of(name) for name in unsaid] == [None, 2000, 2000, None, 20000, None]
    assert [
        step_of(name)
        for name in ("iter_0000100", "global_step7", "checkpoint-5", "epoch=2-step=30.ckpt", "x")
    ] == [100, 7, 5, 30, None]
    assert is_part("model.pt.tmp")
    assert not is_part("events.out.tfevents.1")
