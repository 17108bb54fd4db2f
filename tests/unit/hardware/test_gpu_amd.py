"""AMD GPUs by /sys: a recorded card, a made node of eight, cards that are lost, and what is no accelerator. Nothing of it was tried on a card."""

import shutil
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.core.yaml_reader import parse
from mldebug.hardware.gpu.rank_join import RankProcess, join
from mldebug.hardware.gpu.readings import UNLISTED, ecc_count
from mldebug.hardware.gpu.vendors import of_vendor
from mldebug.hardware.health.gpu_rules import gpu_health
from mldebug.hardware.health.model import BAD
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.status.gpu_view import GpuOverview
from mldebug_agents.hardware.gpu.amdgpu import gpu_ids, parse_full, temperatures
from mldebug_agents.hardware.gpu.child import server
from mldebug_agents.hardware.gpu.errors import MissingLibraryError
from mldebug_agents.hardware.gpu.node_reader import node_reader
from mldebug_agents.hardware.gpu.reader import NAME
from mldebug_agents.hardware.gpu.vendors.amd import Amd, Options, create
from mldebug_agents.support.doctor.gpus import examined
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import Spawner

RECORDED = Path(__file__).parents[2] / "fixtures" / "amdgpu" / "recorded.txt"
GIB = 1 << 30
SCLK = "S: 132Mhz \n0: 500Mhz \n1: 2100Mhz *\n"
PROPERTIES = "cpu_cores_count 0\nsimd_count 1216\nlocation_id {place}\ndomain 0\ndrm_render_minor 128\nunique_id 77\n"
BUSES = (0x0C, 0x22, 0x38, 0x5C)


class Tree:
    """A folder that looks like /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def card(self, number: int, bus: int, **more: str) -> str:
        """An MI300X at work; returns its folder. `more`: other texts, `__` for a slash."""
        folder = f"class/drm/card{number}/device"
        files = {
            "vendor": "0x1002\n", "device": "0x74a1\n", "unique_id": f"{number:016x}\n", "gpu_busy_percent": "97\n", "mem_busy_percent": "41\n",
            "uevent": f"DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:74A1\nPCI_SLOT_NAME=0000:{bus:02x}:00.0\n", "product_name": "AMD Instinct MI300X OAM\n",
            "serial_number": f"69235{number}\n", "vbios_version": "113-M3000100-102\n", "mem_info_vram_total": f"{192 * GIB}\n", "mem_info_vram_used": f"{150 * GIB}\n",
            "current_link_speed": "32.0 GT/s PCIe\n", "max_link_speed": "32.0 GT/s PCIe\n", "current_link_width": "16\n", "max_link_width": "16\n",
            "pcie_replay_count": "0\n", "pp_dpm_sclk": SCLK, "pp_dpm_mclk": "0: 900Mhz \n1: 1300Mhz *\n",
            "ras__umc_err_count": "ue: 0\nce: 3\nde: 0\n", "ras__gfx_err_count": "ue: 1\nce: 0\n", "ras__features": "feature mask: 0x5fff\n",
            "hwmon__hwmon7__power1_input": "698000000\n", "hwmon__hwmon7__power1_cap": "750000000\n", "hwmon__hwmon7__power1_cap_default": "750000000\n",
            "hwmon__hwmon7__temp2_label": "junction\n", "hwmon__hwmon7__temp2_input": "71000\n", "hwmon__hwmon7__temp2_crit": "100000\n",
            "hwmon__hwmon7__temp3_label": "mem\n", "hwmon__hwmon7__temp3_input": "58000\n", "hwmon__hwmon7__temp3_crit": "105000\n",
        }  # fmt: skip
        for name, text in (files | more).items():
            self.write(f"{folder}/{name.replace('__', '/')}", text)
        return folder

    def kfd(self, node: int, bus: int, gpu_id: int) -> None:
        folder = f"class/kfd/kfd/topology/nodes/{node}"
        self.write(f"{folder}/gpu_id", f"{gpu_id}\n")
        self.write(f"{folder}/properties", PROPERTIES.format(place=bus << 8))

    def process(self, pid: int, gpu_id: int, size: int) -> None:
        self.write(f"class/kfd/kfd/proc/{pid}/vram_{gpu_id}", f"{size}\n")
        self.write(f"class/kfd/kfd/proc/{pid}/pasid", "32770\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Four MI300X whose cards are not numbered as they lie on the bus, and the board's own display."""
    one = Tree(tmp_path)
    one.write("class/drm/card0/device/vendor", "0x1a03\n")
    for number, bus in zip((4, 3, 2, 1), BUSES, strict=True):
        one.card(number, bus)
        one.kfd(node=1 + number, bus=bus, gpu_id=1000 + bus)
    one.write("class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    one.write("class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\nlocation_id 0\n")
    return one


def test_the_recorded_card_is_read(tmp_path: Path) -> None:
    lines = [line.partition(" ") for line in RECORDED.read_text().splitlines() if line[0] != "#"]
    for path, _, text in lines:
        Tree(tmp_path).write(path.removeprefix("sys/"), text.replace("\\n", "\n") + "\n")
    reader = Amd(str(tmp_path))
    (observed,) = reader.watch().gpus
    assert (observed.uuid, observed.bus_id, observed.utilization_ratio) == ("AMD-0123456789abcdef", "0000:09:00.0", 0.04)  # fmt: skip
    assert (
        observed.memory_utilization_ratio is observed.power_watts is None
    )  # this card tells neither
    (gpu,) = reader.full().gpus
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (8573157376, 1490378752)
    assert gpu.clock_hertz == {"graphics": 852e6, "memory": 167e6}
    assert gpu.clock_max_hertz == {"graphics": 1630e6, "memory": 945e6}
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.pcie_replays) == (3, 16, 0)
    assert (gpu.name, gpu.vbios, gpu.ecc, gpu.processes) == ("AMD GPU", "115-D050PIL-100", (), None)


def test_a_node_of_accelerators_is_read_in_the_order_of_the_bus(tree: Tree) -> None:
    full = Amd(str(tree.root)).full()
    assert [(gpu.index, gpu.bus_id) for gpu in full.gpus] == [(place, f"0000:{bus:02x}:00.0") for place, bus in enumerate(BUSES)]  # fmt: skip
    one = full.gpus[0]
    assert (one.utilization_ratio, one.memory_utilization_ratio) == (0.97, 0.41)
    assert (one.power_instant_watts, one.power_average_watts, one.power_limit_watts) == (698.0, None, 750.0)  # fmt: skip
    assert (one.temperature_celsius, one.memory_temperature_celsius) == (71.0, 58.0)
    assert one.temperature_limits_celsius == {"slowdown": 100.0}
    assert one.clock_hertz["graphics"] == 2100e6
    assert (one.pcie_generation, one.memory_free_bytes) == (5, 42 * GIB)


def test_errors_that_ras_counts_are_those_of_memory_and_of_the_rest(tree: Tree) -> None:
    (one, *_) = Amd(str(tree.root)).full().gpus
    counts = {(type_, place): ecc_count(one, type_, place, "volatile") for type_ in ("corrected", "uncorrected") for place in ("dram", "sram", "total")}  # type: ignore[arg-type]  # fmt: skip
    assert counts["corrected", "dram"] == counts["corrected", "total"] == 3
    assert (counts["uncorrected", "sram"], counts["uncorrected", "dram"]) == (1, 0)
    judged = {one.component: one for one in gpu_health(one, None, 0.0, Thresholds())}
    assert judged["gpu_ecc"].state in BAD


def test_a_card_without_errors_is_not_ill(tree: Tree) -> None:
    tree.card(4, BUSES[0], ras__gfx_err_count="ue: 0\nce: 0\n")
    (one, *_) = Amd(str(tree.root)).full().gpus
    assert [one.component for one in gpu_health(one, None, 0.0, Thresholds()) if one.state in BAD] == []  # fmt: skip


def test_a_rank_is_known_by_its_memory_there(tree: Tree) -> None:
    tree.process(4711, 1000 + BUSES[2], 90 * GIB)
    tree.process(4712, 1000 + BUSES[1], 80 * GIB)
    tree.process(4712, 1000 + BUSES[0], 0)  # a context without memory of its own
    full = Amd(str(tree.root)).full()
    assert [[one.pid for one in gpu.processes or ()] for gpu in full.gpus] == [[], [4712], [4711], []]  # fmt: skip
    ranks = [RankProcess(rank=rank, pid=4711 + rank, local_rank=rank, open_minors=(), environment={}) for rank in (0, 1)]  # fmt: skip
    uuids = {one.rank: one.uuid for one in join(ranks, full.gpus).ranks}
    assert uuids == {0: full.gpus[2].uuid, 1: full.gpus[1].uuid}


def test_a_card_that_cannot_be_read_is_lost_and_costs_the_others_nothing(tree: Tree) -> None:
    reader = Amd(str(tree.root))
    uuids = [gpu.uuid for gpu in reader.full().gpus]
    for name in ("gpu_busy_percent", "mem_info_vram_total"):
        (tree.root / f"class/drm/card3/device/{name}").unlink()
    for read in (reader.watch(), reader.full()):
        assert [gpu.uuid for gpu in read.gpus] == [uuids[0], *uuids[2:]]
        assert [(one.index, one.uuid, one.code) for one in read.lost] == [(1, uuids[1], "")]
    (tree.root / "class/drm/card3/device/uevent").unlink()  # off the bus
    read = reader.full()
    assert [(one.index, one.code) for one in read.lost] == [(1, UNLISTED)]
    assert [gpu.index for gpu in read.gpus] == [0, 2, 3]
    tree.card(3, BUSES[1])
    assert [gpu.uuid for gpu in reader.full().gpus] == uuids


def test_a_card_whose_driver_does_not_tell_its_load_is_there(tree: Tree) -> None:
    """As a virtual function's, which a guest sees without most of its files."""
    for number in (1, 2, 3, 4):
        (tree.root / f"class/drm/card{number}/device/gpu_busy_percent").unlink()
    reader = Amd(str(tree.root))
    watch = reader.watch()
    assert [(gpu.index, gpu.utilization_ratio, gpu.power_watts) for gpu in watch.gpus] == [(place, None, 698.0) for place in range(4)]  # fmt: skip
    assert watch.lost == reader.full().lost == ()
    (tree.root / "class/drm/card3/device/mem_info_vram_total").unlink()
    assert [one.index for one in reader.watch().lost] == [1]


def test_cards_of_one_number_are_two(tree: Tree) -> None:
    tree.card(3, BUSES[1], unique_id="00000000000000aa\n")
    tree.card(2, BUSES[2], unique_id="00000000000000aa\n")
    reader = Amd(str(tree.root))
    full = reader.full()
    uuids = [gpu.uuid for gpu in full.gpus]
    assert uuids[1:3] == [f"AMD-00000000000000aa-0000:{bus:02x}:00.0" for bus in BUSES[1:3]]
    assert [gpu.uuid for gpu in reader.watch().gpus] == uuids
    for name in ("uevent", "gpu_busy_percent", "mem_info_vram_total"):
        (tree.root / f"class/drm/card3/device/{name}").unlink()
    read = reader.full()
    assert [gpu.uuid for gpu in read.gpus] == [uuids[0], *uuids[2:]]  # the other keeps its name
    assert [(one.index, one.uuid) for one in read.lost] == [(1, uuids[1])]


@pytest.mark.parametrize("names", [("hwmon2", "hwmon7"), ("hwmon7", "hwmon9")])
def test_sensors_are_those_of_amdgpu(tree: Tree, names: tuple[str, str]) -> None:
    (other,) = set(names) - {"hwmon7"}
    tree.card(4, BUSES[0], **{f"hwmon__{other}__name": "tmp421\n", f"hwmon__{other}__power1_input": "5000000\n", "hwmon__hwmon7__name": "amdgpu\n"})  # fmt: skip
    assert Amd(str(tree.root)).full().gpus[0].power_instant_watts == 698.0


def test_a_card_without_sensors_or_counters_has_no_values_of_them(tree: Tree) -> None:
    shutil.rmtree(tree.root / "class/drm/card4/device/hwmon")
    shutil.rmtree(tree.root / "class/drm/card4/device/ras")
    (gpu, *_) = Amd(str(tree.root)).full().gpus
    values = (gpu.power_instant_watts, gpu.power_limit_watts, gpu.temperature_celsius, gpu.memory_temperature_celsius)  # fmt: skip
    assert values == (None,) * 4
    assert (gpu.ecc, gpu.temperature_limits_celsius, gpu.utilization_ratio) == ((), {}, 0.97)
    assert [one.component for one in gpu_health(gpu, None, 0.0, Thresholds()) if one.state in BAD] == []  # fmt: skip


@pytest.mark.parametrize(
    "files",
    [
        {"vendor": "0x10de\n"},
        {"mem_info_vram_total": f"{512 << 20}\n"},  # inside of a processor
        {"uevent": "DRIVER=amdgpu\n"},
    ],
)
def test_what_is_no_accelerator_of_amd_is_not_there(tmp_path: Path, files: dict[str, str]) -> None:
    tree = Tree(tmp_path)
    tree.card(0, 3, **files)
    with pytest.raises(MissingLibraryError):
        Amd(str(tmp_path)).watch()
    with pytest.raises(MissingLibraryError):
        create(Options(sysfs="/nowhere")).full()


def test_numbers_that_a_dead_card_gives_are_none() -> None:
    texts = {"gpu_busy_percent": "255", "mem_info_vram_used": str(2**64 - 1), "mem_info_vram_total": "x", "current_link_speed": "Unknown"}  # fmt: skip
    gpu = parse_full(0, texts, {"power1_average": str(2**32 - 1), "temp1_label": "edge", "temp1_input": "-1"}, {"umc": "garbage"}, None)  # fmt: skip
    cases = (gpu.utilization_ratio, gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.pcie_generation, gpu.power_average_watts, gpu.temperature_celsius)  # fmt: skip
    assert cases == (None,) * 6
    assert gpu.ecc == ()
    assert temperatures({"temp1_label": "edge", "temp1_input": "0"}) == {}


def test_nodes_of_the_topology_are_found_by_their_place() -> None:
    other = "location_id 8960\ndomain 1\n"
    assert gpu_ids([("0", "location_id 0\n"), ("51140", "location_id 3072\n"), ("7", other), ("x", other), ("9", "")]) == {"0000:0c:00.0": "51140", "0001:23:00.0": "7"}  # fmt: skip


def test_it_is_read_in_a_child_as_any_vendor(tree: Tree) -> None:
    with Spawner({NAME: server.serve}) as spawner:
        section = f"gpus: {{a: {{kind: amd, sysfs: {tree.root}}}}}"
        reader = node_reader(spawner, Host(), parse(section, "c.yaml", Config).gpus)
        full = reader.full()
        assert [(gpu.index, gpu.vendor) for gpu in full.gpus] == [(place, "amd") for place in range(4)]  # fmt: skip
        assert len(reader.watch().gpus) == 4
        reader.close()


def test_doctor_says_that_it_was_not_tried_on_a_card(tree: Tree) -> None:
    full = of_vendor(Amd(str(tree.root)).full(), "amd", 0)
    (check, *_) = examined(GpuOverview(node="n", at=1.0, gpus=full), None, 0).checks
    assert (check.name, check.state) == ("GPU driver", "limited")
    assert "from recordings, not tried on a card" in check.meaning
