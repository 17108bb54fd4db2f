"""Published figures of GPU models: which one a driver's name gets, each with its source."""

import pytest

from mldebug.probes.baselines import beside_others, shipped
from mldebug.probes.checks import rates_check
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
    "name", ["NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA L40S", "cpu", ""]
)
def test_another_model_is_never_held_against_it(name: str) -> None:
    assert BASELINES.limit(name, "matmul_bf16") is None
    assert BASELINES.comparison(name, "matmul_bf16", 1e14) == ""


def test_every_figure_has_a_source_and_one_value() -> None:
    for model in BASELINES.models:
        for name in ("matmul_bf16", "host_to_device", "peer_copy", "all_reduce"):
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
