"""The overflow detector on real modules: which one it names, what it takes for a fault, and that training is what it was."""

import copy
import dataclasses
import io
import math
import os
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.utils.checkpoint import checkpoint

import mldebug_training
from mldebug_training.helpers.overflow import findings
from mldebug_training.helpers.overflow.detector import OverflowDetector, detect_overflow
from mldebug_training.helpers.overflow.measuring import Measures, _as_it_is, leaves
from mldebug_training.helpers.overflow.modules import named
from mldebug_training.helpers.weights import dump_weights

HALF_MAX = 65504.0


class Block(nn.Module):
    """Two layers with a factor between them, by which it overflows."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)) * self.factor)


class Model(nn.Module):
    def __init__(self, *factors: float, again: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(factor) for factor in factors)
        self.norm = nn.LayerNorm(8)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            for _ in range(self.again):
                x = block(x)
        return self.norm(x)


def data(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 8).to(dtype)


class Own(nn.Module):
    """Computes in the type of its input, whatever autocast is on; one number overflows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.abs() + 1
        wide[0, 0] = math.inf
        return wide


def finds(model: nn.Module, *args: Any, **options: Any) -> Any:
    """The first fault of one batch."""
    with OverflowDetector(model, on_found="report", **options) as detector:
        model(*(args or (data(),)))
    return detector.found[0] if detector.found else None


def python(code: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(Path(mldebug_training.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)


# --- which one it names --------------------------------------------------------------------------


@pytest.mark.parametrize("each_call", [False, True])
def test_the_first_module_is_named_and_what_was_before_it(each_call: bool) -> None:
    model = Model(1, 1e6, 1).half()
    detector = OverflowDetector(model, each_call=each_call)
    with pytest.raises(mldebug_training.OverflowFoundError) as caught:
        model(data(torch.float16))
    fault = caught.value.fault
    assert (fault.frame.name, fault.row.label, fault.what) in [
        (
            "blocks.1.down",
            "input[0]",
            "inf",
        ),  # the factor stands in no module: it is the input that is bad
    ]
    assert "batch 0: inf first in input[0] of blocks.1.down (Linear)" in str(caught.value)
    detector.close()


def test_a_bad_output_tells_how_large_the_inputs_were(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()).half()
    nn.init.constant_(model[1].weight, 3e4)
    fault = finds(model, torch.full((2, 8), 50.0, dtype=torch.float16))
    assert (fault.frame.name, fault.row.role) == ("1", "output")
    err = capsys.readouterr().err
    largest = model[0](torch.full((2, 8), 50.0, dtype=torch.float16)).abs().max().item()
    assert f"inputs up to {largest:.2e}; float16 ends at 6.55e+04" in err
    frames = re.findall(r"^ {18}(\S+) \(", err, re.MULTILINE)
    assert frames == ["0", "1"]  # the first bad one last, and nothing of what came of it


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_bad_weight_is_named_before_the_output_that_it_spoils(
    value: float, dtype: torch.dtype
) -> None:
    model = Model(1, 1).to(dtype)
    with torch.no_grad():
        model.blocks[1].up.bias[3] = value
    fault = finds(model, data(dtype))
    assert (fault.frame.name, fault.row.label) == ("blocks.1.up", "bias")
    assert fault.what == ("nan" if math.isnan(value) else str(value))


def test_a_bad_statistic_of_batch_norm_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    model[1].running_var[2] = math.nan
    fault = finds(model)
    assert (fault.row.role, fault.row.label) == ("buffer", "running_var")


def test_what_float16_cannot_hold_is_no_fault_in_bfloat16_and_float64() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 1, bias=False)).double()
    nn.init.constant_(model[0].weight, 1.0)
    nn.init.constant_(model[1].weight, 1e200)
    ones = torch.full((1, 8), 1e5)
    assert finds(model, ones.double()) is None
    assert finds(model.float(), ones).what == "inf"  # 1e200 became inf
    nn.init.constant_(model[1].weight, 1.0)
    assert finds(model.bfloat16(), ones.bfloat16()) is None
    assert finds(model.half(), ones.half()).frame.name == "0"


def test_a_module_called_again_is_told_by_its_call() -> None:
    model = Model(300.0, again=3).half()
    fault = finds(model, data(torch.float16))
    assert fault.frame.name.startswith("blocks.0")
    assert fault.frame.call >= 2
    assert f"call {fault.frame.call}" in fault.frame.title


# --- what is a fault and what not ----------------------------------------------------------------


def test_a_mask_of_minus_infinity_is_no_fault() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softmax, self.passing = nn.Softmax(-1), nn.Identity()
            self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.softmax(self.passing(x @ x.T + mask) + self.mask)

    mask = torch.full((4, 4), -math.inf).triu(1)
    assert finds(Masked(), data(), mask) is None
    fault = finds(Masked(), data(), torch.full((4, 4), -math.inf))
    assert (fault.frame.name, fault.what, fault.row.role) == ("softmax", "nan", "output")


def test_minus_infinity_that_nobody_put_in_is_a_fault() -> None:
    layer = nn.Linear(8, 8).half()
    nn.init.constant_(layer.weight, -HALF_MAX)
    fault = finds(layer, torch.ones(1, 8, dtype=torch.float16))
    assert (fault.what, fault.row.role) == ("-inf", "output")


def test_the_encoder_of_pytorch_with_its_masks_is_healthy() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with OverflowDetector(model) as detector:
        model(torch.randn(2, 5, 16), mask=mask, is_causal=True).sum().backward()
    assert detector.batch == 0
    assert not detector.found


@pytest.mark.parametrize(
    ("dtype", "scale", "what"),
    [
        (torch.float16, 1e-9, "underflow"),  # all of it is 0
        (torch.float16, 1e-6, "underflow"),  # subnormal
        (torch.float16, 1.0, None),
        (torch.bfloat16, 1e-9, None),  # has the range of float32
        (torch.float32, 1e-40, "underflow"),
        (torch.float32, 0.0, None),  # weights that begin with zero are made so
    ],
)
def test_a_module_that_loses_all_its_numbers(
    dtype: torch.dtype, scale: float, what: str | None
) -> None:
    model = nn.Linear(8, 8, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(2**-10 if dtype == torch.float16 and scale == 1e-9 else scale)
    x = torch.full((1, 8), 2**-20 if scale == 1e-9 else 1.0, dtype=dtype)
    fault = finds(model, x, underflow=True)
    assert (fault.what if fault else None) == what
    assert finds(model, x) is None  # only where it was asked for


def test_autocast_is_judged_by_the_type_that_it_computes_in() -> None:
    model = nn.Linear(8, 8)
    nn.init.constant_(model.weight, 1e-7)
    assert finds(model, underflow=True) is None
    with torch.autocast("cpu", torch.float16):
        assert finds(model, underflow=True).row.label == "weight"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_are_the_tensors_own_under_autocast(dtype: torch.dtype) -> None:
    """Autocast refuses to join tensors of another half precision than its own."""
    plain = finds(Own(), data(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        found = finds(Own(), data(dtype))
    assert (found.what, found.row.label, found.row.numbers.note) == ("inf", "output", "")
    assert found.row.numbers.least == plain.row.numbers.least > 0


def test_a_device_that_has_no_autocast_is_measured() -> None:
    with _as_it_is(torch, "meta"):
        assert Measures().put(data(torch.float16)).note == ""


def test_names_that_are_to_be_left_out_are_not_looked_at() -> None:
    model = Model(1, 1)
    with torch.no_grad():
        model.blocks[0].up.weight.fill_(math.nan)
    assert finds(model, skip=["blocks.0*"]).frame.name == "blocks.1.up"


# --- whatever goes in and out --------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor
    more: Any = None


class Anything(nn.Module):
    """Gives what it is told to."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Any, **_: Any) -> Any:
        return self.make(x)


BAD = [
    (lambda x: (x, None, [x / 0]), "output[2][0]"),
    (lambda x: {"logits": x, "aux": {"a": x / 0}}, "output['aux']['a']"),
    (lambda x: Output(None, x / 0), "output.logits"),
    (lambda x: Output(x.sum(), x, (1, "two", {3: x / 0})), "output.more[2][3]"),
    (lambda x: (x / 0).to(torch.complex64), "output"),
    (lambda x: (x / 0).to_sparse(), "output"),
    (lambda x: (x / 0).to(torch.float8_e5m2), "output"),
    (lambda x: torch.nested.as_nested_tensor([x / 0, x], layout=torch.jagged), "output"),
]


@pytest.mark.parametrize(("make", "label"), BAD)
@pytest.mark.filterwarnings("ignore")
def test_outputs_of_every_shape_are_looked_into(make: Any, label: str) -> None:
    fault = finds(Anything(make))
    assert fault is not None
    assert (fault.row.label, fault.what) in [(label, "inf"), (label, "nan")]


HARMLESS = [
    lambda x: None,
    lambda x: 3,
    lambda x: x[:0],
    lambda x: x > 0,
    lambda x: (x * 100).long(),
    lambda x: x.to("meta") / 0,
    lambda x: x.to(torch.complex128),
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    lambda x: x.to(torch.float8_e4m3fn),
    lambda x: [[[[[[[[x / 0]]]]]]]],  # deeper than anybody looks
    lambda x: type("Odd", (), {"__getattr__": lambda *_: 1 / 0})(),
    lambda x: Output,
]


@pytest.mark.parametrize("make", HARMLESS)
@pytest.mark.filterwarnings("ignore")
def test_what_holds_no_numbers_is_no_fault_and_does_no_harm(make: Any) -> None:
    model = Anything(make)
    with OverflowDetector(model, trace_batches=[0]) as detector:
        given = model(data())
    assert type(given).__name__ == type(make(data())).__name__
    assert (detector.batch, detector.found) == (0, [])


def test_words_of_a_call_are_inputs_too() -> None:
    model = Anything(lambda x: x)
    with OverflowDetector(model, on_found="report") as detector:
        model(x=data(), attention=data() / 0)
    assert detector.found[0].row.label in ("input['attention']",)


def test_tensors_of_inference_mode_and_of_vmap_do_no_harm() -> None:
    model = nn.Linear(8, 8)
    with OverflowDetector(model) as detector:
        with torch.inference_mode():
            model(data())
        assert torch.vmap(model)(data()).shape == (4, 8)
        torch.func.grad(lambda x: model(x).sum())(data())
    assert (detector.batch, detector.found) == (2, [])


def test_numbers_are_those_of_the_tensor() -> None:
    x = torch.tensor([-3.0, 0.25, 2.0])
    measures = Measures()
    found, same, double = measures.put(x), measures.put(x), measures.put(x.double())
    assert found is same  # measured once
    x.mul_(10)
    later = measures.put(x)
    measures.fetch()
    assert (found.low, found.high, found.least, found.most) == (-3.0, 2.0, 0.25, 3.0)
    assert (double.least, double.most) == (0.25, 3.0)
    assert (later.least, later.most) == (2.5, 30.0)


def test_leaves_of_very_many_are_bounded() -> None:
    assert len(list(leaves([data()] * 10_000, "x"))) <= 256


# --- batches -------------------------------------------------------------------------------------


def test_batches_are_traced_in_full_and_the_run_stops_after_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Model(1)
    options: dict[str, Any] = {"trace_batches": [1, (3, 4)], "stop_after": 5, "frames": 2}
    with OverflowDetector(model, on_found="ignore", **options) as detector:
        for _ in range(5):
            model(data())
        with pytest.raises(mldebug_training.BatchReachedError, match="batch 5"):
            model(data())
    err = capsys.readouterr().err
    assert re.findall(r"mldebug: batch (\d+)", err) == ["1", "3", "4"]
    assert err.count("blocks.0.up (Linear)") == 3
    assert len(detector._last) == 2  # the seeds forgot their bound after a traced batch


def test_a_traced_batch_leaves_the_report_of_a_later_one_bounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Model(1, 1, 1)
    with OverflowDetector(model, on_found="report", trace_batches=[0], frames=3):
        model(data())
        capsys.readouterr()
        model.norm.weight.data[0] = math.nan
        model(data())
    err = capsys.readouterr().err
    assert "the last 3 calls" in err
    assert len(re.findall(r"^ {18}\S", err, re.MULTILINE)) == 3


def test_a_run_that_goes_on_with_nan_is_reported_once_until_it_was_healthy() -> None:
    model = Model(1)
    with OverflowDetector(model, on_found="report") as detector:
        for bad in (1, 1, 0, 1, 1):
            model(data() / (0 if bad else 1))
        assert len(detector.found) == 2
        for turn in range(100):
            model(data() / (turn % 2))
    assert len(detector.found) == findings.MAX_REPORTS


def test_a_forward_that_fails_is_still_told() -> None:
    class Picky(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            if not x.isfinite().all():
                raise KeyError("no loss")
            return x

    model = Picky(1e39)
    with pytest.raises(KeyError):  # noqa: SIM117
        with OverflowDetector(model) as detector:
            model(data())
    assert detector.found[0].frame.name == "blocks.0.down"


def test_a_model_whose_own_forward_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(1e39)
    monkeypatch.setattr("mldebug_training.helpers.overflow.detector.MAX_WAITING", 100)
    with OverflowDetector(model, on_found="report") as detector:
        for _ in range(30):
            model.blocks[0](data())
        assert len(detector._waiting) < 40
        assert detector.found


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_second_run_of_a_checkpoint_is_no_batch(
    reentrant: bool, whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(1, 1)
    with OverflowDetector(model, gradients=True, trace_batches=[(0, 9)]) as detector:
        for _ in range(2):
            x = data().requires_grad_()
            if whole:
                out = checkpoint(model, x, use_reentrant=reentrant)
            else:
                middle = checkpoint(model.blocks[0], x, use_reentrant=reentrant)
                out = model(middle)
            out.sum().backward()
    assert detector.batch == 1
    assert x.grad is not None
    if whole:
        assert capsys.readouterr().err.count(" blocks.0.up (Linear)\n") == 2


# --- gradients -----------------------------------------------------------------------------------


def test_a_gradient_that_overflows_is_named_where_it_did() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).half()
    with torch.no_grad():
        model[1].weight.fill_(6e4)
        for layer in model:
            layer.bias.zero_()
    x = torch.full((1, 8), 1e-4, dtype=torch.float16)
    with OverflowDetector(model, gradients=True, on_found="report") as detector:
        loss = (model(x) * 60).sum()
        assert not detector.found
        loss.backward()
        fault = detector.found[0]
        assert fault.frame.backward
        assert fault.frame.name == "0"  # behind the large weight
    with pytest.raises(mldebug_training.OverflowFoundError):  # noqa: SIM117
        with OverflowDetector(model, gradients=True):
            (model(x) * 60).sum().backward()


# --- never harm the job --------------------------------------------------------------------------


def train(model: nn.Module, steps: int = 5, **options: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    watching = OverflowDetector(model, **options) if options else None
    torch.manual_seed(3)
    for _ in range(steps):
        loss = nn.functional.dropout(model(torch.randn(4, 8)), 0.1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if watching:
        watching.close()
    return losses


@pytest.mark.parametrize(
    "options",
    [{"on_found": "raise"}, {"gradients": True}, {"each_call": True}, {"trace_batches": [(0, 9)]}],
)
def test_training_is_what_it_was_to_the_last_bit(options: dict[str, Any]) -> None:
    assert train(Model(1, 1), **options) == train(Model(1, 1))


def test_close_leaves_nothing_behind() -> None:
    model = Model(1, 1)
    fresh = copy.deepcopy(model)
    with OverflowDetector(model, gradients=True) as detector:
        out = model(data())
    out.sum().backward()  # the graph outlives it
    assert not detector._waiting
    for one, other in zip(model.modules(), fresh.modules(), strict=True):
        mine, theirs = vars(one), vars(other)
        assert mine.keys() == theirs.keys()
        for name in mine:
            if "hook" in name:
                assert not mine[name], name
    assert not any(one._backward_hooks for one in model.parameters())


def test_a_copy_of_the_model_takes_no_hook_along() -> None:
    model = Model(1)
    with OverflowDetector(model) as detector:
        twin = copy.deepcopy(model)
        stored = io.BytesIO()
        torch.save(model, stored)
        twin(data() / 0)
        assert (
            b"mldebug_training.modules\n_NoHook" in stored.getvalue()
        )  # as in all models saved so far
        stored.seek(0)
        torch.load(stored, weights_only=False)(data() / 0)
    assert detector.batch == -1
    assert not detector.found


def test_an_error_of_its_own_never_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    for name in ("detector.leaves", "measuring._version", "findings.fault_of", "measuring._fetch"):
        with monkeypatch.context() as patch:
            patch.setattr(f"mldebug_training.helpers.overflow.{name}", broken)
            assert train(Model(1), gradients=True, trace_batches=[0]) == train(Model(1)), name


def test_a_compiled_model_is_refused_with_the_way_out() -> None:
    compiled = torch.compile(Model(1), backend="eager")
    with pytest.raises(ValueError, match=r"before torch\.compile"):
        OverflowDetector(compiled)
    inside = Model(1)
    inside.norm.compile(backend="eager")
    with pytest.raises(ValueError, match="norm was compiled"):
        OverflowDetector(nn.Sequential(inside))


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_program_is_refused() -> None:
    with pytest.raises(ValueError, match="TorchScript"):
        OverflowDetector(torch.jit.script(nn.Linear(2, 2)))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # of the compiler, at any break of a graph
def test_a_model_compiled_afterwards_is_watched() -> None:
    torch._dynamo.reset()
    model = Model(1, 1e39)
    with OverflowDetector(model, on_found="report") as detector:
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            compiled(data())
    assert detector.batch == 1
    assert detector.found[0].frame.name == "blocks.1.down"


def test_the_compiler_may_be_imported_after_the_detector_was_made() -> None:
    code = """
        import sys, torch, mldebug_training
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        assert "torch._dynamo" not in sys.modules
        detector = mldebug_training.OverflowDetector(model, on_found="report")
        compiled = torch.compile(model, backend="eager")
        for turn in range(2):
            compiled(torch.ones(1, 2) / (1 - turn))
        print(detector.batch, [(one.frame.name, one.what) for one in detector.found])
    """
    done = python(code)
    assert done.stdout == "1 [('0', 'inf')]\n", done.stderr
    assert "recompile" not in done.stderr


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="raise, report, exit, ignore"):
        OverflowDetector(Model(1), on_found="stop")


def test_wrappers_do_not_show_in_names() -> None:
    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    assert dict(named(DistributedDataParallel(Model(1)))).keys() >= {"norm", "blocks.0.up", "Model"}


# --- what is written -----------------------------------------------------------------------------


def test_each_rank_has_its_file_and_its_name_in_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    finds(Model(1e39), folder=str(tmp_path / "new"))
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("overflow-rank3-")
    lines = path.read_text().splitlines()
    assert len(lines) > 5
    assert all(line.startswith("[rank 3] ") for line in lines)
    rows = capsys.readouterr().err.splitlines()
    assert len(rows) == 2
    assert rows[1] == f"[rank 3] more in {path}"


def test_where_the_folder_cannot_be_written_it_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert finds(Model(1e39), folder=str(tmp_path / "file")) is not None
    assert "the last" in capsys.readouterr().err


def test_exit_ends_the_process_at_once_with_its_code() -> None:
    code = """
        import atexit, torch, mldebug_training
        atexit.register(print, "never")
        print("before")
        model = torch.nn.Linear(2, 2)
        mldebug_training.OverflowDetector(model, on_found="exit")
        try:
            model(torch.ones(1, 2) / 0)
        finally:
            print("never")
    """
    done = python(code)
    assert (done.returncode, done.stdout) == (findings.EXIT_CODE, "before\n")
    assert "inf first in input[0] of Linear (Linear)" in done.stderr


def test_detect_overflow_tells_one_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    assert detect_overflow(data(), "x") == ""
    assert detect_overflow({"a": data(), "b": data() / 0}, "after the norm") in ("inf", "nan")
    assert "after the norm['b'] holds" in capsys.readouterr().err
    assert detect_overflow("no tensor", "x") == ""
    assert capsys.readouterr().err == ""


# --- weights -------------------------------------------------------------------------------------


def test_equal_weights_give_equal_files_and_a_changed_one_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(1, 1).bfloat16()
    before = Path(dump_weights(model, str(tmp_path), "after-805", pp=11, tp=1))
    again = Path(dump_weights(copy.deepcopy(model), str(tmp_path), "before-806", pp=11, tp=1))
    assert before.name == "weights-after-805-pp11-tp1.txt"
    assert before.read_text() == again.read_text()
    with torch.no_grad():
        model.blocks[1].up.weight[3, 3] += 0.25
    monkeypatch.setenv("RANK", "2")
    changed = Path(dump_weights(model, str(tmp_path), "after-806"))
    assert changed.name == "weights-after-806-rank2.txt"
    pairs = zip(before.read_text().splitlines(), changed.read_text().splitlines(), strict=True)
    assert [one.split()[0] for one, other in pairs if one != other] == ["blocks.1.up.weight"]
    assert len(before.read_bytes()) < 2000


def test_weights_of_every_kind_are_dumped_or_it_says_no(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("whole", torch.arange(3))
    model.register_buffer("none", torch.zeros(0))
    model.register_buffer("far", torch.zeros(3, device="meta"))
    model.register_buffer("across", torch.arange(6.0).reshape(2, 3).T)
    text = Path(dump_weights(model, str(tmp_path), "x")).read_text()
    assert [line.split()[0] for line in text.splitlines()] == ["whole", "none", "far", "across"]
    assert dump_weights(model, "/proc/nowhere", "x") == ""
