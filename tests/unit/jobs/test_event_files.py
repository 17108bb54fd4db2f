"""Charts of a job that tells no step in its output: found in its folders, followed, whoever else writes there left out."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress
from mldebug_agents.jobs.logs import job_logs
from mldebug_agents.jobs.logs.job_logs import HungMounts, JobLogs, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.system.child.listing import FolderListing
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader, Unreadable
from mldebug_agents.system.spawn import Spawner

CHARTS = Path(__file__).parents[2] / "fixtures/charts"
TENSORBOARD = (CHARTS / "tensorboard.bin").read_bytes()


class CountingReader(Reader):
    """A real reader that counts its listings and reads."""

    listings = reads = 0

    def list_folder(self, *args: object, **options: object) -> FolderListing | Unreadable:
        self.listings += 1
        return super().list_folder(*args, **options)  # type: ignore[arg-type]

    def read_from(self, *args: object, **options: object):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super().read_from(*args, **options)  # type: ignore[arg-type]


class Stand:
    """A process that only sleeps in a folder, as a job of one rank, and its logs."""

    def __init__(self, reader: CountingReader, folder: Path, output: Path | None = None, argv: tuple[str, ...] = ()) -> None:  # fmt: skip
        self.folder, self.reader, self.host = folder, reader, Host()
        with (output or Path("/dev/null")).open("ab") as stream:
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            self.process = subprocess.Popen(command, cwd=folder, stdout=stream, stderr=stream)
        brief = self.host.brief(self.process.pid)
        assert brief is not None
        rank = RankIdentity(
            rank=0, world_size=1, pid=self.process.pid, start_ticks=brief.start_ticks,
            started_at=time.time(), node="n", uid=os.geteuid(), argv=argv,
        )  # fmt: skip
        self.job = Job(id="j", name="j", launcher="torchrun", ranks=(rank,), nodes=("n",))
        self.progress, self.now = LogProgress(), 1000.0
        self.logs = JobLogs(
            *(self.host, reader, HungMounts(self.host, reader)),
            *(lambda: LogParser(create_all("logs")), self.progress, LogSharing()),
        )

    def look(self, seconds: float = 1.0) -> int | None:
        self.now += seconds
        self.logs.look(self.job, LogFinder(self.host), self.now)
        return self.progress.step

    def events(self, pid: int | None = None, below: str = "out/runs/now") -> Path:
        (self.folder / below).mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.1700000000.n1.{pid or self.process.pid}.0"
        return self.folder / below / name


@pytest.fixture
def reader() -> Iterator[CountingReader]:
    with Spawner() as spawner, CountingReader(spawner) as it:
        yield it


@pytest.fixture
def stand(reader: CountingReader, tmp_path: Path) -> Iterator[Stand]:
    with ExitStack() as stack:
        one = Stand(reader, tmp_path)
        stack.callback(one.process.wait)
        stack.callback(one.process.kill)
        yield one


def test_steps_come_from_a_file_that_nobody_holds_open(stand: Stand) -> None:
    assert stand.look() is None
    stand.events().write_bytes(TENSORBOARD[: len(TENSORBOARD) // 2])
    first = stand.look(job_logs.CHARTS_SOON)
    assert first is not None
    assert 0 < first < 190
    with stand.events().open("ab") as events:
        events.write(TENSORBOARD[len(TENSORBOARD) // 2 :])
    assert stand.look() == 190
    assert stand.progress.step_format == "tensorboard"
    assert stand.logs.sentence == str(stand.events())


def test_a_table_and_an_offline_file_of_wandb_tell_steps_as_well(stand: Stand) -> None:
    place = stand.folder / "lightning_logs/version_3"
    place.mkdir(parents=True)
    (place / "metrics.csv").write_text("step,train_loss\n9,2.0\n19,1.9\n")
    assert stand.look(job_logs.CHARTS_SOON) == 19
    other = stand.folder / "wandb/offline-run-1/run-1.wandb"
    other.parent.mkdir(parents=True)
    other.write_bytes((CHARTS / "wandb.bin").read_bytes())
    assert stand.look(job_logs.SEARCH_EVERY) == 39


def test_what_is_older_another_process_s_or_another_user_s_is_not_its_own(stand: Stand) -> None:
    stand.events(pid=1).write_bytes(TENSORBOARD)
    old = stand.folder / "metrics.csv"
    old.write_text("step,train_loss\n9,2.0\n")
    os.utime(old, (time.time() - 60, time.time() - 60))
    assert stand.look(job_logs.CHARTS_SOON) is None
    stand.events().write_bytes(TENSORBOARD)
    (rank,) = stand.job.ranks
    stranger = msgspec.structs.replace(rank, uid=rank.uid + 1)
    stand.job = msgspec.structs.replace(stand.job, ranks=(stranger,))
    assert stand.look(job_logs.CHARTS_SOON) is None


def test_a_link_in_its_folder_is_not_followed(stand: Stand, tmp_path: Path) -> None:
    hidden = tmp_path.parent / f"hidden-{tmp_path.name}"
    hidden.write_bytes(TENSORBOARD)
    stand.events().symlink_to(hidden)
    assert stand.look(job_logs.CHARTS_SOON) is None


def test_who_tells_steps_in_its_log_costs_no_listing(
    reader: CountingReader, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.0\n")
    one = Stand(reader, tmp_path, log)
    try:
        one.look()
        before = reader.listings
        for step in range(2, 200):
            with log.open("a") as stream:
                stream.write(f"step {step} loss 2.0\n")
            assert one.look(5.0) == step
        assert reader.listings == before <= 1
    finally:
        one.process.kill()
        one.process.wait()


def test_who_tells_none_costs_one_listing_a_minute_and_two_reads_a_look(stand: Stand) -> None:
    """An idle cost: what a job that writes nothing makes us read in ten minutes of looks every 5 s."""
    for _ in range(60):
        stand.look(5.0)
    assert stand.reader.listings <= 20  # while it is young
    before = stand.reader.listings
    for _ in range(120):
        stand.look(5.0)
    assert stand.reader.listings - before <= 11
    assert stand.reader.reads == 0
    stand.events().write_bytes(TENSORBOARD)
    stand.look(job_logs.SEARCH_EVERY)
    before = stand.reader.reads
    for _ in range(100):
        stand.look(0.5)
    assert stand.reader.reads - before <= 100


LLAMA_FACTORY = '{"current_steps": %d, "total_steps": 300, "loss": 1.5, "lr": 1e-05, "epoch": 0.01, "percentage": 0.17, "elapsed_time": "0:00:10"}\n'


def append(file: Path, *steps: int) -> None:
    """As its writers do: open, append a line, close."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for step in steps:
        with file.open("a") as lines:
            lines.write(LLAMA_FACTORY % step)


def test_json_lines_that_are_appended_by_a_file_which_is_closed_again_tell_steps(stand: Stand) -> None:  # fmt: skip
    log = stand.folder / "saves/llama/lora/sft/trainer_log.jsonl"
    append(log, 5, 10)
    assert stand.look(job_logs.CHARTS_SOON) == 10
    append(log, 15)
    assert stand.look() == 15
    assert (stand.progress.total_steps, stand.progress.loss) == (300, 1.5)
    assert stand.progress.step_format == "jsonl"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sft.yaml", "model: x\noutput_dir: {}  # ours\nlearning_rate: 1e-5\n"),
        ("sft.json", '{{"model": "x", "output_dir": "{}", "epochs": 3}}'),
        ("run.toml", "[job]\nsave_dir = '{}'\n"),
        ("work.yml", "trainer:\n  default_local_dir: 3\n  work_dir: {}\n"),
    ],
)
def test_a_folder_that_only_a_settings_file_names_is_looked_through(
    reader: CountingReader, tmp_path: Path, name: str, text: str
) -> None:
    elsewhere, works = tmp_path / "elsewhere/run-1", tmp_path / "works"
    works.mkdir()
    (works / name).write_text(text.format(elsewhere))
    with ExitStack() as stack:
        one = Stand(reader, works, argv=("llamafactory-cli", "train", name))
        stack.callback(one.process.wait)
        stack.callback(one.process.kill)
        append(elsewhere / "trainer_log.jsonl", 5, 10)
        assert one.look(job_logs.CHARTS_SOON) == 10


def test_the_folder_of_its_own_log_is_looked_through(reader: CountingReader, tmp_path: Path) -> None:  # fmt: skip
    works, out = tmp_path / "works", tmp_path / "out"
    works.mkdir()
    out.mkdir()
    with ExitStack() as stack:
        one = Stand(reader, works, out / "job.log")
        stack.callback(one.process.wait)
        stack.callback(one.process.kill)
        one.look()
        append(out / "metrics.jsonl", 7)
        assert one.look(job_logs.CHARTS_SOON) == 7


def test_a_settings_file_that_another_user_s_rank_may_not_read_names_nothing(
    reader: CountingReader, tmp_path: Path
) -> None:
    """It is a link to a file that it may not follow, or no file at all: nothing is opened that the rank names so."""
    works, hidden = tmp_path / "works", tmp_path / "hidden"
    works.mkdir()
    hidden.mkdir()
    (hidden / "real.yaml").write_text(f"output_dir: {hidden}\n")
    (works / "link.yaml").symlink_to(hidden / "real.yaml")
    os.mkfifo(works / "fifo.yaml")
    with ExitStack() as stack:
        one = Stand(reader, works, argv=("train", "link.yaml", "fifo.yaml"))
        stack.callback(one.process.wait)
        stack.callback(one.process.kill)
        append(hidden / "trainer_log.jsonl", 5)
        assert one.look(job_logs.CHARTS_SOON) is None


def test_what_a_checkpoint_says_of_the_trainer_is_no_rhythm(stand: Stand) -> None:
    state = stand.folder / "out/checkpoint-500/trainer_state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"global_step": 500, "log_history": [{"loss": 1.5, "step": 500}]}')
    assert stand.look(job_logs.CHARTS_SOON) is None
