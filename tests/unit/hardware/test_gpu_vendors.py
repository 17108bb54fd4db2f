"""GPUs of several vendors on one node: a child each, one row of numbers, and one that fails costs the others nothing."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fakenvml.library import FakeNvml
from mldebug.config.schema import Config
from mldebug.core.errors import ConfigError
from mldebug.core.model import Gap
from mldebug.core.yaml_reader import parse
from mldebug.hardware.gpu.expected import ExpectedGpus
from mldebug.hardware.gpu.positions import located
from mldebug.hardware.gpu.rank_join import RankProcess, join
from mldebug.hardware.gpu.readings import (
    GpuProcess,
    GpuReading,
    GpuWatch,
    LostGpu,
    NodeGpus,
    NodeWatch,
)
from mldebug.hardware.gpu.vendors import join_full_reads, of_vendor
from mldebug_agents.hardware.gpu.child import server
from mldebug_agents.hardware.gpu.child.messages import NAME
from mldebug_agents.hardware.gpu.errors import (
    GpuDriverError,
    GpusReleasedError,
    NoGpuLibraryError,
)
from mldebug_agents.hardware.gpu.node_reader import NodeReader, node_reader
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner
from shared.hardware.vendorfiles import vendor_file
from shared.system.hung import wait_until

OTHER = '''"""GPUs of the maker Abacus."""

from pathlib import Path

import msgspec

from mldebug.hardware.gpu.readings import GpuReading, GpuWatch, LostGpu, NodeGpus, NodeWatch
from mldebug_agents.hardware.gpu.errors import DriverGoneError, MissingLibraryError


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str = "/nowhere"


class Abacus:
    def __init__(self, folder):
        self.folder = Path(folder)

    def watch(self):
        self._check()
        return NodeWatch(at=1.0, gpus=(GpuWatch(uuid="A-0", index=0), GpuWatch(uuid="A-1", index=1)))

    def full(self):
        self._check()
        gpu = GpuReading(uuid="A-0", index=0, name="Abacus 1")
        return NodeGpus(at=1.0, driver_version="7.1", gpus=(gpu,), lost=(LostGpu(index=1, reason="it is silent"),))

    def leave_alone(self, these):
        pass

    def close(self):
        pass

    def _check(self):
        if not self.folder.exists():
            raise MissingLibraryError("no Abacus here")
        if (self.folder / "gone").exists():
            raise DriverGoneError("its driver was unloaded")


def create(options):
    return Abacus(options.folder)
'''


@pytest.fixture
def spawner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawner]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.table"))
    files = tmp_path / "files"
    files.mkdir()
    with vendor_file(files, "abacus", OTHER), Spawner({NAME: server.serve}) as it:
        yield it


@pytest.fixture
def reader(spawner: Spawner, tmp_path: Path) -> Iterator[NodeReader]:
    """Both vendors, as a configuration names them."""
    (tmp_path / "abacus").mkdir()
    library = FakeNvml(tmp_path).library
    it = configured(spawner, f"{{a: {{kind: nvidia, library: {library}}}, b: {{kind: abacus, folder: {tmp_path}/abacus}}}}")  # fmt: skip
    yield it
    it.close()


def configured(spawner: Spawner, section: str) -> NodeReader:
    return node_reader(spawner, Host(), parse(f"gpus: {section}", "c.yaml", Config).gpus)


def test_two_vendors_are_read_as_one_node(reader: NodeReader) -> None:
    watch = reader.watch()
    assert [(one.index, one.vendor) for one in watch.gpus] == [(0, "nvidia"), (1, "nvidia"), (2, "abacus"), (3, "abacus")]  # fmt: skip
    full = reader.full()
    assert [(one.index, one.name) for one in full.gpus] == [(0, "NVIDIA H200"), (1, "NVIDIA H200"), (2, "Abacus 1")]  # fmt: skip
    assert [(one.index, one.vendor) for one in full.lost] == [(3, "abacus")]
    assert full.driver_version.endswith(", 7.1")
    assert full.unread == ""


def test_a_driver_that_is_gone_costs_the_other_vendor_nothing_and_no_gpu_is_called_missing(
    reader: NodeReader, tmp_path: Path
) -> None:
    expected = ExpectedGpus()
    expected.look(reader.full())
    (tmp_path / "abacus" / "gone").touch()
    for _ in range(3):
        full = reader.full()
        assert [one.vendor for one in full.gpus] == ["nvidia", "nvidia"]
        (gap,) = [one for one in full.gaps if one.what == "GPUs of abacus"]
        assert "its driver was unloaded" in gap.reason
        count = expected.look(full)
        assert count.missing == ()
        assert [(one.gpu.uuid, one.reason) for one in count.silent] == [("A-0", gap.reason)]
    assert [one.what for one in reader.watch().gaps] == ["GPUs of abacus"]


def test_the_only_vendor_that_is_here_fails_as_it_does_alone(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "gone").touch()
    reader = configured(spawner, f"{{a: {{kind: nvidia, library: /nowhere/x.so}}, b: {{kind: abacus, folder: {tmp_path}}}}}")  # fmt: skip
    with pytest.raises(GpuDriverError, match="its driver was unloaded"):
        reader.watch()
    reader.close()


def test_without_a_section_every_file_is_tried_nvidia_first(spawner: Spawner) -> None:
    reader = node_reader(spawner, Host(), {})
    assert [one.vendor for one in reader._readers] == ["nvidia", "abacus", "amd"]
    reader.close()


def test_a_node_without_gpus_says_so_and_keeps_no_child(spawner: Spawner) -> None:
    reader = configured(spawner, "{a: {kind: nvidia, library: /nowhere/x.so}, b: {kind: abacus}}")
    with pytest.raises(NoGpuLibraryError, match="/nowhere/x"):
        reader.full()
    assert [one.pid for one in reader._readers] == [None, None]
    reader.close()


def test_the_library_of_one_vendor_that_is_missing_changes_nothing(
    spawner: Spawner, tmp_path: Path
) -> None:
    library = FakeNvml(tmp_path).library
    alone = configured(spawner, f"{{a: {{kind: nvidia, library: {library}}}}}")
    both = configured(spawner, f"{{a: {{kind: abacus}}, b: {{kind: nvidia, library: {library}}}}}")
    assert both.full().gpus == alone.full().gpus
    assert both.full().gaps == ()
    alone.close()
    both.close()


def test_a_release_takes_all_vendors(reader: NodeReader) -> None:
    reader.watch()
    reader.release(60.0)
    assert 0 < reader.released_seconds <= 60
    wait_until(reader.let_go)
    with pytest.raises(GpusReleasedError):
        reader.watch()
    reader.release(0.0)
    assert len(reader.watch().gpus) == 4
    assert reader.leftovers() == ()


def test_the_numbers_of_the_first_vendor_that_loses_a_gpu_stay_its_own(
    spawner: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "abacus").mkdir()
    fake = FakeNvml(tmp_path)
    reader = configured(spawner, f"{{a: {{kind: nvidia, library: {fake.library}}}, b: {{kind: abacus, folder: {tmp_path}/abacus}}}}")  # fmt: skip
    reader.full()
    fake.lose(1)
    full = reader.full()
    assert [one.index for one in full.gpus] == [0, 2]
    reader.close()


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{a: {kind: intel}}", "intel"),
        ("{a: {kind: nvidia, libary: x}}", "library"),
        ("{a: {}}", "kind"),
    ],
)
def test_the_section_is_strict(section: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(f"gpus: {section}", "c.yaml", Config)


# --- what knows only NVIDIA's GPUs ------------------------------------------------------------------

NVIDIA = GpuReading(uuid="GPU-0", index=0, minor=0, bus_id="00000000:3B:00.0", name="H200")
ABACUS = GpuReading(uuid="A-0", index=1, name="Abacus 1", vendor="abacus", processes=(GpuProcess(pid=7),))  # fmt: skip


def test_a_rank_is_found_on_any_vendors_gpu_by_the_driver_and_by_cuda_on_nvidias_alone() -> None:
    by_cuda = RankProcess(rank=0, pid=5, local_rank=0, open_minors=(0,), environment={})
    by_driver = RankProcess(rank=1, pid=7, local_rank=1, open_minors=(), environment={})
    text = join([by_cuda, by_driver], [NVIDIA, ABACUS])
    assert [(one.rank, one.uuid) for one in text.ranks] == [(0, "GPU-0"), (1, "A-0")]
    assert text.ranks[0] == join([by_cuda], [NVIDIA]).ranks[0]


def test_places_on_the_bus_are_those_of_nvidias_driver() -> None:
    lost = (LostGpu(index=1, reason="lost"), LostGpu(index=2, reason="silent", vendor="abacus"))
    watch = NodeWatch(at=0.0, gpus=(GpuWatch(uuid="GPU-0", index=0, bus_id="00000000:3B:00.0"),), lost=lost)  # fmt: skip
    result = located(watch, ["0000:3b:00.0", "0000:5c:00.0"])
    assert [one.bus_id for one in result.lost] == ["00000000:5C:00.0", ""]


def test_nothing_is_added_to_what_nvidias_gpus_tell_the_outside() -> None:
    alone = NodeGpus(at=1.0, gpus=(NVIDIA,))
    assert b"vendor" not in msgspec.json.encode(alone)
    assert b"unread" not in msgspec.json.encode(join_full_reads([alone]))
    gap = Gap(what="GPUs of abacus", reason="it hangs")
    assert join_full_reads([of_vendor(alone, "nvidia", 0)], [gap]).unread == "it hangs"
