"""Saves of which each rank writes a part: one that a rank never wrote is not complete, as the world and other saves tell."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.plugins import create_all
from mldebug.storage.checkpoints.history import CheckpointSeries, KnownCheckpoint
from mldebug.storage.checkpoints.model import Checkpoint, Completeness, FileEntry
from mldebug.storage.checkpoints.rank_files import rank_family, ranks_of
from mldebug_agents.storage.checkpoints.series_reader import SeriesReader
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.system.whose import of_mine

torch = pytest.importorskip("torch", reason="the files are real ones of PyTorch")
START, SOON, LATER = 1_700_000_000.0, 10.0, 200.0
REAL = 1_750_000_000.0


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


class Watched:
    """A folder as the agent looks at it again and again, with a clock of the test's own."""

    def __init__(self, folder: Path, series: str, reader: Reader, world: int | None = 4) -> None:
        self.folder = folder
        self.watch = SeriesReader((str(folder), series), create_all("checkpoints"))
        self.series, self.reader, self.world = CheckpointSeries(), reader, world
        self.now = START
        self.look()

    def look(self, seconds: float = LATER) -> dict[str, KnownCheckpoint]:
        """What is known so much later; by then nobody writes any more."""
        for one in self.folder.rglob("*"):
            if one.stat().st_mtime > REAL:  # written since, by a clock that is not the test's
                os.utime(one, (self.now + 1,) * 2)
        self.now += seconds
        reading = self.watch.look("run", of_mine(self.reader), frozenset(), self.now)
        self.series.look(self.now, reading.readings, whole=reading.whole, world_size=self.world)
        return {one.name: one for one in self.series.checkpoints}

    def settled(self) -> dict[str, KnownCheckpoint]:
        """After a second look, when what had just come is old."""
        self.look()
        return self.look()


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"w": torch.ones(9)}, path)


def ranks(folder: Path, ones: str, name: str = "rank{}.pt") -> None:
    for rank in ones:
        save(folder / name.format(rank))


def test_a_file_of_each_rank_is_held_against_the_saves_before_it(tmp_path: Path, reader: Reader) -> None:  # fmt: skip
    it = Watched(tmp_path, "ckpt-#", reader)
    ranks(tmp_path / "ckpt-10", "0123")
    assert it.settled()["ckpt-10"].state is Completeness.COMPLETE
    ranks(tmp_path / "ckpt-20", "012")
    assert it.look(SOON)["ckpt-20"].state is Completeness.WRITING
    died = it.settled()["ckpt-20"]
    assert (died.state, died.why) == (
        Completeness.INCOMPLETE,
        "rank#.pt of rank 3 is missing, which ckpt-10 has",
    )
    assert it.series.complete[-1].name == "ckpt-10"
    ranks(tmp_path / "ckpt-20", "3")
    assert it.settled()["ckpt-20"].state is Completeness.COMPLETE


def test_the_first_save_is_held_against_the_world(tmp_path: Path, reader: Reader) -> None:
    it = Watched(tmp_path, "ckpt-#", reader)
    ranks(tmp_path / "ckpt-10", "012")
    ckpt_10 = it.settled()["ckpt-10"]
    assert (ckpt_10.state, ckpt_10.why) == (
        Completeness.UNKNOWN,
        "3 of 4 ranks have a file there, and no other save tells whether that is all",
    )
    ranks(tmp_path / "ckpt-20", "0123")
    ckpt_10 = it.settled()
    assert ckpt_10["ckpt-20"].state is Completeness.COMPLETE
    assert ckpt_10["ckpt-10"].state is Completeness.INCOMPLETE
    assert it.series.complete[-1].name == "ckpt-20"


def test_two_saves_of_the_same_ranks_are_how_this_job_saves(tmp_path: Path, reader: Reader) -> None:
    it = Watched(tmp_path, "ckpt-#", reader)
    ranks(tmp_path / "ckpt-10", "02")
    assert it.settled()["ckpt-10"].state is Completeness.UNKNOWN
    ranks(tmp_path / "ckpt-20", "02")
    result = it.settled()
    assert {one.state for one in result.values()} == {Completeness.COMPLETE}


def test_a_smaller_world_needs_fewer_files(tmp_path: Path, reader: Reader) -> None:
    it = Watched(tmp_path, "ckpt-#", reader)
    ranks(tmp_path / "ckpt-10", "0123")
    it.settled()
    it.world = 3
    ranks(tmp_path / "ckpt-20", "012")
    result = it.settled()
    assert (result["ckpt-10"].state, result["ckpt-20"].state) == (
        Completeness.COMPLETE,
        Completeness.COMPLETE,
    )


def test_a_save_of_before_the_agent_is_not_called_dead(tmp_path: Path, reader: Reader) -> None:
    ranks(tmp_path / "ckpt-10", "0123")
    ranks(tmp_path / "ckpt-20", "012")
    result = Watched(tmp_path, "ckpt-#", reader).settled()
    assert result["ckpt-10"].state is Completeness.COMPLETE
    assert (result["ckpt-20"].state, result["ckpt-20"].why) == (
        Completeness.UNKNOWN,
        "rank#.pt of rank 3 is missing, which ckpt-10 has",
    )


def test_an_old_save_that_is_being_deleted_has_not_died(tmp_path: Path, reader: Reader) -> None:
    it = Watched(tmp_path, "ckpt-#", reader)
    for step in (10, 20):
        ranks(tmp_path / f"ckpt-{step}", "0123")
        it.settled()
    (tmp_path / "ckpt-10/rank0.pt").unlink()
    ckpt_10 = it.look()["ckpt-10"]
    assert (ckpt_10.state, ckpt_10.why) == (Completeness.UNKNOWN, "it is being deleted")


def test_files_of_ranks_side_by_side_are_one_save(tmp_path: Path, reader: Reader) -> None:
    it = Watched(tmp_path, "ckpt_#_rank#.pt", reader)
    ranks(tmp_path, "0123", "ckpt_10_rank{}.pt")
    whole = it.settled()["ckpt_10_rank#.pt"]
    assert (whole.state, whole.shards) == (Completeness.COMPLETE, 4)
    assert whole.size == sum(one.stat().st_size for one in tmp_path.iterdir())
    ranks(tmp_path, "013", "ckpt_20_rank{}.pt")
    died = it.settled()["ckpt_20_rank#.pt"]
    assert (died.state, died.why) == (
        Completeness.INCOMPLETE,
        "the file of rank 2 is missing, which ckpt_10_rank#.pt has",
    )
    ranks(tmp_path, "2", "ckpt_20_rank{}.pt")
    (tmp_path / "ckpt_20_rank1.pt").write_bytes(b"PK\3\4 cut off")
    assert it.settled()["ckpt_20_rank#.pt"].state is Completeness.INCOMPLETE


def test_of_very_many_files_of_ranks_no_save_is_looked_at_in_part(tmp_path: Path, reader: Reader) -> None:  # fmt: skip
    for step in range(3):
        for rank in range(200):
            (tmp_path / f"ckpt_{step}_rank{rank}.pt").write_bytes(b"")
    it = Watched(tmp_path, "ckpt_#_rank#.pt", reader, world=200)
    assert {one.ranks["the file"] for one in it.look().values()} == {"0-199"}
    assert len(it.series.checkpoints) == 2


def test_latest_of_deepspeed_does_not_say_that_all_ranks_are_done(tmp_path: Path, reader: Reader) -> None:  # fmt: skip
    it = Watched(tmp_path, "global_step#", reader)
    zero = "global_step{}/bf16_zero_pp_rank_{{}}_mp_rank_00_optim_states.pt"
    for step, ones in ((10, "012"), (20, "0123"), (30, "012")):
        save(tmp_path / f"global_step{step}/mp_rank_00_model_states.pt")
        ranks(tmp_path, ones, zero.format(step))
        (tmp_path / "latest").write_text(f"global_step{step}")
        result = it.settled()
        if step == 10:
            assert result["global_step10"].state is Completeness.UNKNOWN
            assert "3 of 4 ranks" in result["global_step10"].why
    states = {name: one.state for name, one in result.items()}
    assert states == {
        "global_step10": Completeness.INCOMPLETE,
        "global_step20": Completeness.COMPLETE,
        "global_step30": Completeness.INCOMPLETE,
    }
    assert "zero_pp_rank_#_mp_rank_00_optim_states.pt of rank 3" in result["global_step30"].why


def test_a_tensor_parallel_rank_that_goes_missing_in_megatrons_layout(tmp_path: Path, reader: Reader) -> None:  # fmt: skip
    it = Watched(tmp_path, "iter_#", reader, world=8)
    for step, ones in ((10, "01"), (20, "0")):
        ranks(tmp_path, ones, f"iter_00000{step}/mp_rank_0{{}}/model_optim_rng.pt")
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(str(step))
        result = it.settled()
    assert (
        result["iter_0000010"].state is Completeness.COMPLETE
    )  # two of eight are all that write here
    assert (
        result["iter_0000020"].why
        == "mp_rank_#/model_optim_rng.pt of rank 1 is missing, which iter_0000010 has"
    )


def test_the_random_states_of_a_trainers_ranks(tmp_path: Path, reader: Reader) -> None:
    it = Watched(tmp_path, "checkpoint-#", reader)
    for step, ones in ((10, "0123"), (20, "01")):
        path = tmp_path / f"checkpoint-{step}"
        ranks(path, ones, "rng_state_{}.pth")
        save(path / "pytorch_model.bin")
        (path / "trainer_state.json").write_text("{}")
        result = it.settled()
    assert result["checkpoint-10"].state is Completeness.COMPLETE
    assert (
        result["checkpoint-20"].why
        == "rng_state_#.pth of rank 2 is missing, which checkpoint-10 has"
    )


def test_names_without_ranks_and_hostile_ones_tell_none() -> None:
    assert rank_family("model-00001-of-00003.safetensors") is None
    assert rank_family("frank3.pt") is None
    assert rank_family("rank1234567.pt") is None
    many = tuple(FileEntry(f"a{one}/rank0.pt") for one in range(99))
    assert ranks_of(Checkpoint(name="step_1", files=many)) == {}
