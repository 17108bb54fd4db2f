"""Published figures of GPU models and networks: which one a driver's name or a node's adapters get, each with its source."""

import pytest

from mldebug.probes.baselines import beside_others, shipped
from mldebug.probes.checks import amount, fp8_check, rates_check
from mldebug.probes.collectives import collective_result

BASELINES = shipped()


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 271.2),
        ("NVIDIA A100-PCIE-40GB", 252.9),
        ("NVIDIA A100 80GB PCIe", 252.9),
        ("NVIDIA H100 80GB HBM3", 794.5),
        ("NVIDIA H200", 794.5),
        ("NVIDIA GH200 144G HBM3e", 828.6),
        ("NVIDIA B200", 1745.0),
        ("NVIDIA B300 SXM6 AC", 1769.0),
        ("NVIDIA GB200", 1822.0),
        ("AMD Instinct MI300X", 668.4),
        ("AMD Instinct MI355X", 1565.0),
    ],
)
def test_each_model_has_its_own_figure(name: str, tflops: float) -> None:
    found = BASELINES.limit(name, "matmul_bf16")
    assert found is not None
    assert found[0] == pytest.approx(0.7 * tflops * 1e12)
    assert "Machine Learning Engineering" in found[1]


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 1402.6),
        ("NVIDIA H200", 1453.4),
        ("NVIDIA GH200 144G HBM3e", 1535.0),
        ("NVIDIA B200", 3432.5),
        ("NVIDIA B300 SXM6 AC", 3353.3),
        ("NVIDIA GB200", 3615.6),
    ],
)
def test_each_model_has_its_own_figure_of_8_bit_floats(name: str, tflops: float) -> None:
    words = BASELINES.comparison(name, "matmul_fp8", tflops * 0.9e12)
    assert words.startswith("90% of what this hardware does elsewhere (mamf-finder with float8")


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200 NVL", "AMD Instinct MI300X"]
)
def test_where_nobody_published_8_bit_floats_nothing_is_said_of_them(name: str) -> None:
    assert BASELINES.comparison(name, "matmul_fp8", 1e15) == ""
    check = fp8_check({"GPU 0": 1e15}, {"GPU 0": name}, BASELINES)
    assert check.sentence == "fp8: 1,000 TFLOPS or more"


def test_8_bit_floats_are_told_and_drain_no_node() -> None:
    rates = {"GPU 0": 1310e12, "GPU 1": 200e12}
    check = fp8_check(rates, dict.fromkeys(rates, "NVIDIA H200"), BASELINES)
    assert check.state == "fine"
    assert check.sentence.startswith("fp8: 200 TFLOPS or more, 14% of what this hardware")
    assert check.figures == rates


def test_a_figure_of_thousands_is_readable() -> None:
    assert amount("matmul", 1745e12) == "1,745 TFLOPS"
    assert amount("matmul", 780.4e12) == "780 TFLOPS"


@pytest.mark.parametrize(
    "name", ["NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA L40S", "cpu", ""]
)
def test_another_model_is_never_held_against_it(name: str) -> None:
    assert BASELINES.limit(name, "matmul_bf16") is None
    assert BASELINES.comparison(name, "matmul_bf16", 1e14) == ""


def test_every_figure_has_a_source_and_one_value() -> None:
    for model in BASELINES.models:
        for name in ("matmul_bf16", "matmul_fp8", "host_to_device", "peer_copy", "all_reduce"):
            figure = getattr(model, name)
            assert figure is None or (
                figure.source and (figure.best is None) != (figure.least is None)
            )


def test_a_superchip_is_not_held_against_eight_gpus_of_another_machine() -> None:
    assert BASELINES.limit("NVIDIA GH200 480GB", "all_reduce", 8) is None
    assert BASELINES.limit("NVIDIA H200", "all_reduce", 8) is not None


def test_a_check_says_what_this_hardware_does_elsewhere() -> None:
    rates = {"GPU 0": 700e12, "GPU 1": 690e12}
    one = rates_check("matmul", "matmul", rates, dict.fromkeys(rates, "NVIDIA H200"), BASELINES)
    assert one.state == "fine"
    assert (
        "690 TFLOPS or more, 87% of what this hardware does elsewhere (mamf-finder" in one.sentence
    )
    unknown = rates_check("matmul", "matmul", rates, dict.fromkeys(rates, "Other"), BASELINES)
    assert unknown.sentence == "matmul: 690 TFLOPS or more"


@pytest.mark.parametrize(
    ("gpu", "ranks", "size", "words"),
    [
        (
            "NVIDIA A100-SXM4-80GB",
            8,
            1 << 30,
            "71% of what this hardware does elsewhere (nccl-tests",
        ),
        ("NVIDIA A100-SXM4-80GB", 8, 1 << 20, ""),
        ("NVIDIA A100-SXM4-80GB", 4, 1 << 30, ""),
        ("", 8, 1 << 30, ""),
        ("NVIDIA L40S", 8, 1 << 30, ""),
        ("NVIDIA H200", 8, 1 << 30, "39% of the least that others accept (azurehpc"),
    ],
)
def test_a_collective_beside_what_was_published(
    gpu: str, ranks: int, size: int, words: str
) -> None:
    seconds = size * 2 * (ranks - 1) / ranks / 166.8e9
    result = collective_result("all_reduce", size, [[seconds]] * ranks, [0] * ranks)
    assert (words in beside_others(gpu, [result])) if words else beside_others(gpu, [result]) == ""


def test_every_network_has_a_source_and_one_value_that_its_adapters_can_carry() -> None:
    for one in BASELINES.networks:
        line = one.adapters * one.gigabits * 1e9 / 8
        assert one.source
        assert one.peak in (None, line)
        assert one.best is None or one.best < line
        assert (one.best is None) != (one.peak is None)
    kinds = [(one.adapters, one.gigabits) for one in BASELINES.networks]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    ("gigabits", "words"),
    [
        ([400.0] * 8, "80% of what 8 x 400 Gb/s carry, 80% are usual from 4 GB on (NVIDIA Quantum-2"),
        ([400.0] * 8 + [25.0], "80% of what 8 x 400 Gb/s"),  # one more for the logins
        ([100.0] * 4, "753% of what 4 x 100 Gb/s do elsewhere (AWS EFA v1: all_reduce_bench, 4 GB"),
        ([200.0] * 16, "80% of what 16 x 200 Gb/s"),
        ([400.0] * 7, ""),  # one of eight is down: that is no kind of network
        ([10.0], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_an_all_reduce_between_nodes_is_set_beside_what_their_adapters_carry(
    gigabits: list[float], words: str
) -> None:
    ranks, size = 32, 4 << 30
    seconds = size * 2 * (ranks - 1) / ranks / 320e9
    result = collective_result("all_reduce", size, [[seconds]] * ranks, [0] * ranks)
    line = beside_others("NVIDIA H100 80GB HBM3", [result], gigabits)
    assert line.startswith(f"all_reduce between nodes: 320 GB/s, {words}") if words else line == ""
    assert beside_others("", [result], gigabits) == ""  # gloo is no figure of the network
