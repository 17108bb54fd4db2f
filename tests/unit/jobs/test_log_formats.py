"""logs/: every format on the lines that real frameworks print, and on lines that only look like it."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.core.errors import ConfigError
from mldebug.core.plugins import create, create_all, load, names
from mldebug.jobs.logs.records import LogFormat, LogRecord, duration, number, whole
from shared.system.patience import PATIENCE

FORMATS: list[LogFormat] = create_all("logs")
BLOOM = (
    " iteration        2/   95367 | consumed samples:         4096 | consumed tokens:      8388608 | elapsed time per"
    " iteration (s): 769.99 | learning rate: 3.787E-06 | global batch size:  2048 | lm loss: 6.384045E+01 | loss"
    " scale: 4096.0 | grad norm: 15906.210 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan"
    " iterations:   0 | samples per second: 2.660 | TFLOPs: 108.47 |"
)
MILLIS = (
    " iteration        1/  159576 | consumed samples:           16 | elapsed time per iteration (ms): 29500.0 |"
    " learning rate: 0.000E+00 | global batch size:    16 | lm loss: 1.247E+01 | loss scale: 4294967296.0 |"
)
CORE = (
    " [2024-05-01 12:00:00] iteration        7/      10 | consumed samples:            8 | elapsed time per iteration"
    " (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 312.5 | learning rate: 1.0E-05 | lm loss: nan |"
)


Values = tuple[int | None, int | None, float | None, float | None]  # step, total, loss, seconds
EXAMPLES: dict[str, tuple[str, Values]] = {  # of each format a line that its framework prints
    "boosting": ("[12]\ttrain-rmse:0.5123\teval-rmse:0.6231", (12, None, None, None)),
    "images": (
        "tick 12    kimg 48.0     time 52m 10s     sec/tick 310.2   sec/kimg 77.5",
        (12, None, None, 310.2),
    ),
    "vits": ("INFO:my-voice:[4200, 9.990004373906418e-05]", (4200, None, None, None)),
    "marian": (
        "[2026-03-04 05:06:07] Ep. 7 : Up. 3500 : Sen. 5,630,845 : Cost 34.46 : Time 6.91s : 13596.73 words/s",
        (3500, None, 34.46, None),
    ),
    "paddle": (
        "[INFO 2026-03-04 05:06:07,714 train.py:70] Pass 13, Batch 650, Cost 35.525531, {'classification_error_evaluator': 0.73}",
        (650, None, 35.525531, None),
    ),
    "tables": ("|    total_timesteps | 3584        |", (3584, None, None, None)),
    "wenet": (
        "2026-03-04 05:06:07,107 DEBUG TRAIN Batch 4/3700 loss 12.64 loss_att 10.9 loss_ctc 16.6 lr 0.0003 rank 0",
        (3700, None, 12.64, None),
    ),
    "espnet": (
        "[node1] 2026-03-04 05:06:07,446 (trainer:486) INFO: 5epoch:train:5301-5350batch: loss=0.5, train_time=0.25",
        (5350, None, 0.5, 0.25),
    ),
    "rich": (
        "Epoch 4/9 ━━━━━━╸━━━━━━━ 107/291 0:00:33 • 0:00:09 4.00it/s v_num: 0 loss: 0.5",
        (107, 291, 0.5, 0.25),
    ),
    "huggingface": (
        " 12%|█▏        | 123/1000 [00:10<01:20,  10.00it/s, loss=0.5]",
        (123, 1000, 0.5, 0.1),
    ),
    "jax": (
        "I0822 10:00:33.123456 7 metric_logger.py:230] completed step: 12, seconds: 1.234, total_weights: 65536, loss: 7.123",
        (12, None, 7.123, 1.234),
    ),
    "keras": (
        " 3/100 ━━━━━━━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.5 - loss: 0.3",
        (3, 100, 0.3, 0.005),
    ),
    "megatron_deepspeed": (BLOOM, (2, 95367, 63.84045, 769.99)),
    "plain": ("step 12/100 loss 0.5 time: 20 ms", (12, 100, 0.5, 0.02)),
    "regex": ("it=12 of 100 cost=0.5 in 0.25", (12, 100, 0.5, 0.25)),
}
OPTIONS = {
    "regex": {
        "pattern": r"it=(?P<step>\d+) of (?P<total>\d+) cost=(?P<loss>\S+) in (?P<seconds>\S+)"
    }
}


@pytest.mark.parametrize("name", names("logs"))
def test_every_format_reads_its_example(name: str) -> None:
    assert name in EXAMPLES, f"give EXAMPLES a line that logs/{name}.py reads, and what is in it"
    line, expected = EXAMPLES[name]
    options = OPTIONS.get(name)
    given = load("logs", name).Options(**options) if options else None
    record = create("logs", name, given).parse(line)
    assert record is not None
    assert record.format == name
    assert (record.step, record.total, record.loss, record.step_seconds) == expected


def parse(name: str, line: str) -> LogRecord | None:
    format_: LogFormat = create("logs", name)
    return format_.parse(line)


def values(name: str, line: str) -> Values | None:
    record = parse(name, line)
    if record is None:
        return None
    assert record.format == name
    return record.step, record.total, record.loss, record.step_seconds


# --- megatron ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "[host1:0]:", "0: ", "2024-05-01T12:00:00.1Z stdout F "])
def test_megatron_line_behind_any_prefix(prefix: str) -> None:
    assert values("megatron_deepspeed", prefix + BLOOM) == (2, 95367, 63.84045, 769.99)
    assert values("megatron_deepspeed", prefix + MILLIS) == (1, 159576, 12.47, 29.5)


def test_megatron_lm_has_a_date_and_may_lose_its_loss() -> None:
    record = parse("megatron_deepspeed", CORE)
    assert record is not None
    assert (record.step, record.total, record.step_seconds) == (7, 10, 1.2345)
    assert record.loss is not None
    assert math.isnan(record.loss)
    infinite = parse("megatron_deepspeed", CORE.replace("loss: nan", "loss: -inf"))
    assert infinite is not None
    assert infinite.loss == -math.inf


def test_megatron_loss_is_never_the_loss_scale() -> None:
    line = " iteration 3/ 9 | elapsed time per iteration (ms): 0.0 | loss scale: 4096.0 |"
    assert values("megatron_deepspeed", line) == (3, 9, None, None)


def test_megatron_evaluation_is_progress_without_a_step() -> None:
    for line in (
        "Evaluating iter 3/10",
        " validation loss at iteration 1000 | lm loss value: 2.3 |",
    ):
        assert values("megatron_deepspeed", line) == (None, None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        " iteration     E1121 04:29:58.098000 1336 torch/distributed/elastic/api.py:986] failed",
        "saving checkpoint at iteration    1000 to /data",
        "iteration 12",
        "iterations/s: 3/4 |",
    ],
)
def test_megatron_torn_and_other_lines_are_none(line: str) -> None:
    assert parse("megatron_deepspeed", line) is None


# --- Hugging Face --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("{'loss': 2.3, 'learning_rate': 5e-05, 'epoch': 0.01}", 2.3),
        ("{'loss': 1.2e-05, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 1}", 1.2e-5),
        ("{'loss': '2.3', 'learning_rate': '5e-05', 'epoch': '0.01'}", 2.3),
        ("[rank0]: {'loss': inf, 'epoch': 0.01}", math.inf),
        ("{'eval_loss': 2.1, 'eval_runtime': 3.0, 'epoch': 1.0}", None),
        (
            "{'train_runtime': 101.9003, 'train_samples_per_second': 1.963, 'epoch': 0.69}",
            None,
        ),
    ],
)
def test_trainer_dict(line: str, loss: float | None) -> None:
    assert values("huggingface", line) == (None, None, loss, None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (" 12%|█▏        | 123/1000 [00:10<01:20, 10.0it/s]", (123, 1000, None, 0.1)),
        ("  0%|          | 0/1000 [00:00<?, ?it/s]", (0, 1000, None, None)),
        ("  1%|          | 5/1000 [01:00:10<99:01:20, 12.5s/it]", (5, 1000, None, 12.5)),
        ("100%|##########| 3/3 [00:10<00:00,  2.00it/s]", (3, 3, None, 0.5)),
        (
            "Epoch 3:  12%|█▏ | 12/100 [00:10<01:20, 1.2s/it, v_num=0, train_loss=2.3]",
            (12, 100, 2.3, 1.2),
        ),
        ("[host:0]:Training:  50%|█▏ | 5/10 [00:10<01:20,  1.2s/it]", (5, 10, None, 1.2)),
        ("[host:0]:  50%|█▏ | 5/10 [00:10<01:20,  1.2s/it]", (5, 10, None, 1.2)),
        ("Validation DataLoader 0:  40%|████ | 4/10 [00:00<00:00, 9.1it/s]", (None,) * 4),
        ("1|10|Loss: 0.812:   3%|▎ | 10/300 [00:12<01:23, 4.0it/s]", (10, 300, 0.812, 0.25)),
        (
            "      1/100      2.5G      1.2      0.8      1.1    30     640:  34%|███ | 50/147 [00:10<00:20,  4.0it/s]",
            (50, 147, None, 0.25),
        ),
        ("123it [00:10, 12.5it/s]", (123, None, None, 0.08)),
        ("0it [00:00, ?it/s]", (0, None, None, None)),
        ("[rank0]: Training: 7it [01:00:10,  2.00s/it, loss=0.5]", (7, None, 0.5, 2.0)),
        ("Evaluating: 7it [00:10,  1.00it/s]", (None,) * 4),
        (
            "Epoch 0: |          | 3/? [00:01<?, 2.50it/s, v_num=0]",
            (3, None, None, 0.4),
        ),
        (
            "Epoch 0: |          | 3/? [00:01<00:00, 2.50it/s, v_num=0, train_loss=0.5]",
            (3, None, 0.5, 0.4),
        ),
        ("Validation: |          | 3/? [00:01<00:00, 2.50it/s]", (None,) * 4),
        ("Sanity Checking: |          | 0/? [00:00<?, ?it/s]", None),
        ("Resolving data files: 7it [00:10,  1.00it/s]", None),
        ("exit [00:10, 1.00it/s]", None),
        ("12.5it [00:10, 1.00it/s]", None),
        ("Map:  12%|█▏ | 12/100 [00:10<01:20, 1.2it/s]", None),
        ("Map (num_proc=4):  12%|█▏ | 3000/10000 [00:10<01:20, 300.2 examples/s]", None),
        ("Downloading shards:  50%|█████ | 1/2 [00:01<00:01,  1.2s/it]", None),
        ("50%| of people", None),
        ("{'a': 1}", None),
        ("{'loss': 1.0}", None),
        ("{'epoch': 1.0, 'name': 'x'}", None),
    ],
)
def test_tqdm_bars_of_training_and_of_other_things(
    line: str, expected: tuple[object, ...] | None
) -> None:
    assert values("huggingface", line) == expected


# --- Keras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("3/100 ━━━━", (3, 100, None, None)),
        (
            " 3/100 ━━━━━━━━━━━━━━━━━━━━ 0s 5ms/step - accuracy: 0.5 - loss: 0.3",
            (3, 100, 0.3, 0.005),
        ),
        ("[rank0]: 3/100 ━╸━━ 1:05 2s/step - loss: nan", (3, 100, math.nan, 2.0)),
        (" 3/100 [>.............] - ETA: 1:05 - loss: 0.3", (3, 100, 0.3, None)),
        ("100/100 [=====] - 2s 20ms/step - loss: 0.3 - val_loss: 9", (100, 100, 0.3, 0.02)),
        ("3/Unknown 1s 5ms/step - loss: 0.3", (3, None, 0.3, 0.005)),
        ("   ━━━━━━ 12.3/45.6 MB 5.0 MB/s eta 0:00:01", None),
        ("Downloading 3/10 ━━━━", None),
        ("3/10 of them", None),
        ("[1/5] 3/10 [100]", None),
    ],
)
def test_keras_bars(line: str, expected: tuple[object, ...] | None) -> None:
    found = values("keras", line)
    assert str(found) == str(expected)  # nan is no other nan


# --- plain ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 12 loss 0.5", (12, None, 0.5, None)),
        ("step 12 loss nan", None),
        ("eval step 3/100 loss 0.5", (None, None, None, None)),
        ("[eval] iter 3 acc=0.5", (None, None, None, None)),
        ("val_step=3", (None, None, None, None)),
        ("test step 3/100", (None, None, None, None)),
        ("[test]: step 3 loss 0.5", (3, None, 0.5, None)),
        ("smoke-test step 3 loss 0.5", (3, None, 0.5, None)),
        ("step 12", (12, None, None, None)),
        ("rank 3 step 12", (12, None, None, None)),
        ("global_step=12", (12, None, None, None)),
        ("it 12/100", (12, 100, None, None)),
        ("Step [12/100], Loss: 1E-3", (12, 100, 1e-3, None)),
        ("Epoch 3 [120/5000]", (120, 5000, None, None)),
        ("epoch 001:   10 / 1000 loss=3.2", (10, 1000, 3.2, None)),
        ("Epoch: [0][  10/5005]\tTime  0.5 (0.6)\tLoss 6.9e+00 (7e+00)", (10, 5005, 6.9, 0.5)),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", (640, 60000, 2.3, None)),
        ("Epoch 3/10 loss 0.5", (None, None, 0.5, None)),
        ("epoch 3 step 12 loss inf", (12, None, math.inf, None)),
        ("iter 10: loss 3.2, time 120.5ms, mfu 3%", (10, None, 3.2, 0.1205)),
        ("step 250: train loss 3.2, val loss 3.3", (250, None, 3.2, None)),
        ("step 250: val loss 3.3", (250, None, None, None)),
        ("steps: 10 loss: 2.3 iter time (s): 0.5 samples/sec: 12.3", (10, None, 2.3, 0.5)),
        ('{"step": 12, "loss": 0.5}', (12, None, 0.5, None)),
        ('{"val_loss": 0.7, "step": 12}', (12, None, None, None)),
        ("Iter(train) [ 50/1000]  lr: 1.0e-3 loss: 3.4", (50, 1000, 3.4, None)),
        ("[rank0]:2024 - root - INFO - step: 10  loss: 7.5  memory: 3GiB", (10, None, 7.5, None)),
        ("[logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1]", (10, None, None, None)),
        ("step 5 loss tensor(0.25, device='cuda:0') 2.0 it/s", (5, None, 0.25, 0.5)),
        ("[worker-0:3]: step 12 loss 0.5", (12, None, 0.5, None)),
        ("job-worker-1: step 12", (12, None, None, None)),
        ("(RayTrainWorker pid=12, ip=10.0.0.1) step 12 loss 1", (12, None, 1.0, None)),
        ("step 12 loss 0.5 data_loader: 0.01", (12, None, 0.5, None)),
        ("step 12 loss 0.5, saved the best model", (12, None, 0.5, None)),
        ("step 5 done", (5, None, None, None)),
    ],
)
def test_plain_lines(line: str, expected: tuple[object, ...] | None) -> None:
    if expected is None:
        record = parse("plain", line)
        assert record is not None
        assert record.loss is not None
        assert math.isnan(record.loss)
    else:
        assert values("plain", line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "step into the light",
        "step into 12",
        "step 1: loading the data",
        "Step 3 of the setup begins",
        "step 2.5 is out",
        "first step",
        "footstep 12",
        "it is 12 o'clock",
        "it 12",
        "epoch",
        "in epochs 3 and 4",
        "DataLoader worker 3: batch 12/40 loaded in 0.5 s",
        "worker 3: step 12 loss 0.5",
        "background step 12 loss 0.5",
        "heartbeat: still alive at step 12",
        "prefetch step=12",
        "/opt/step1/run:12",
        "iteration of 12",
        "batch 12",
        "NCCL INFO Channel 00/24 : 0 1 2 3",
        "W0101 12:00:00.000 1 torch/distributed/run.py:793] Setting OMP_NUM_THREADS",
        "time 12 loss of power",
        "99999999999999999999 steps",
    ],
)
def test_plain_ignores_noise_and_chatter(line: str) -> None:
    assert parse("plain", line) is None


# --- regex ---------------------------------------------------------------------------------------


def regex(*patterns: str) -> LogFormat:
    module = load("logs", "regex")
    made: LogFormat = module.create(module.Options(patterns=patterns))
    return made


def test_regex_reads_named_groups_and_the_first_pattern_that_matches() -> None:
    mine = regex(
        r"^it=(?P<step>[\d,]+) of (?P<total>\S+) L=(?P<loss>\S+) t=(?P<seconds>\S+)",
        r"(?P<step>\d+)!",
    )
    assert mine.parse("it=1,234 of 5_000 L=1e-3 t=0.5") == LogRecord(
        step=1234, total=5000, loss=1e-3, step_seconds=0.5, format="regex"
    )
    assert mine.parse("go 7!") == LogRecord(step=7, format="regex")
    assert mine.parse("it=x of y L=z t=?") is None
    assert mine.parse("nothing") is None
    assert regex().parse("step 12") is None


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("step", "has no named group"),
        (r"(\d+)", "has no named group"),
        (r"(?P<stp>\d+)", "'stp'"),
        (r"(?P<step>\d+", "no regular expression"),
        (r"(?P<step>(?:a+)+)x", "repeats something"),
        (r"(?P<step>(?:a|a)*)x", "repeats something"),
        (r"(?P<step>(?:\d{1,9},?){1,30})x", "repeats something"),
        (r"(?P<step>\d+)(?P=step)", "repeats something"),
        (r".*.*.*(?P<step>\d)x", "too slow"),
        (r"\s*\s*\s*(?P<step>\d+)$", "too slow"),
        ("(?P<step>1)" + "x" * 1000, "longer than"),
    ],
)
def test_regex_refuses_what_cannot_work_and_says_why(pattern: str, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        regex(r"(?P<step>\d+)", pattern)
    assert words in caught.value.message
    assert len(caught.value.problems) == 1
    assert "(?P<step>" in caught.value.way_out
    assert time.monotonic() - began < 20 * PATIENCE


def test_regex_reports_all_bad_patterns_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        regex("a", "(")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "pattern",
    [
        r".*step (?P<step>\d+).*loss[:=] (?P<loss>[\d.e+-]+).*",
        r"^\[(?P<step>\d+)/(?P<total>\d+)\]\s+loss=(?P<loss>\S+)(?:\s+t=(?P<seconds>[\d.]+))?",
    ],
)
def test_regex_takes_what_people_write(pattern: str) -> None:
    regex(pattern)


# --- all -----------------------------------------------------------------------------------------

WORDS = [
    "step", "iter", "iteration", "epoch", "loss", "time", " ", "  ", "=", ":", "/", "[", "]", "|", "%|", "{'", "}", "'",
    "'loss': ", "'epoch': ", "nan", "inf", "1", "12/100", "1e999", "9" * 400, "(ms): ", "elapsed time per iteration ",
    "<", "it/s", "s/it", ",", "\t", "\x00", "é", "█", "tensor(",
]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=60).map("".join))
def test_no_line_makes_a_format_raise(line: str) -> None:
    for format_ in FORMATS:
        record = format_.parse(line)
        assert record is None or record.step is None or record.step >= 0


@pytest.mark.parametrize("format_", FORMATS, ids=lambda it: type(it).__name__)
def test_no_line_makes_a_format_slow(format_: LogFormat) -> None:
    """Lines of the greatest length that the parser lets through."""
    size = 16 << 10
    slowest = 0.0
    for word in [
        *WORDS,
        "iteration 1/ 2 |",
        "| 3/? [",
        "1it [",
        "1/2 ━",
        "epoch 1 ",
        "step 1 ",
        "{'epoch': 1",
        "1%|",
        "loss: ",
        "a",
    ]:
        line = (word * size)[:size]
        took = []
        for _ in range(3):
            began = time.process_time()
            format_.parse(line)
            took.append(time.process_time() - began)
        slowest = max(slowest, min(took))
    assert slowest < 0.1


@given(st.text(max_size=60))
def test_numbers_are_read_or_none(text: str) -> None:
    whole(text)
    number(text)
    seconds = duration(text)
    assert seconds is None or 0 < seconds < math.inf


def test_numbers_as_logs_write_them() -> None:
    assert [whole(it) for it in ("12", " 1,234,567", "1_000", "1.5", "", "9" * 16, "²", None)] == [
        12, 1234567, 1000, None, None, None, None, None,
    ]  # fmt: skip
    assert number("6.384045E+01") == 63.84045
    assert duration("1500", "ms") == 1.5
    assert [duration(it) for it in ("0.0", "-1", "nan", "inf", "x")] == [None] * 5


# --- what else counts ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 12,345 | loss 2.3", (12345, None)),
        ("step 1,234,567/2,000,000 | loss 2.3", (1234567, 2000000)),
        ("step 12_345 loss 2.3", (12345, None)),
        ("step=10, skipped=0, lr=1", (10, None)),
        ("step 12,3456 loss 1", (12, None)),
        ("epoch 3 [12,000/60,000] loss 1", (12000, 60000)),
        (
            "01/01 - mmengine - INFO - Epoch(train)  [1][  50/500]  lr: 1.0e-03  loss: 0.5",
            (50, 500),
        ),
        ("Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 0.5s", (50, 1251)),
    ],
)
def test_plain_counts(line: str, expected: tuple[int, int | None]) -> None:
    record = parse("plain", line)
    assert record is not None
    assert (record.step, record.total) == expected


@pytest.mark.parametrize(
    ("name", "line", "place"),
    [
        ("plain", "Train Epoch: 7 [0/60000 (0%)]\tLoss: 0.25", "7"),
        ("plain", "epoch=3 step=2", "3"),
        ("plain", "Train: 4 [  50/1251 (  4%)]  Loss: 6.9", ""),
        ("huggingface", "{'loss': '2.3', 'epoch': '0.01'}", "0.01"),
        ("huggingface", "{'loss': 2.3, 'epoch': 0.02}", "0.02"),
        ("huggingface", "Epoch 3:  12%|█▏ | 12/100 [00:10<01:20, 1.2s/it]", "3"),
        ("huggingface", "Evaluating:  40%|████ | 4/10 [00:00<00:00, 9.1it/s]", " 4/10"),
        ("megatron_deepspeed", "Evaluating iter 3/10", "Evaluating iter 3"),
    ],
)
def test_the_epoch_and_the_place_in_an_evaluation(name: str, line: str, place: str) -> None:
    record = parse(name, line)
    assert record is not None
    assert record.place == place


@pytest.mark.parametrize(
    ("line", "shape", "bare"),
    [
        ("step 12 tokens=3", "step", True),
        ("[rank3]: 2024-05-01 12:00:00,123 INFO step 12 tokens=3", "info step", True),
        ("gpu util: step 4: util=0.0", "gpu util step", True),
        ("gpu util: step 5 of 10", "gpu util step", True),
        ("train step 5 of 10", "train step", False),
        ("step 12 loss nan", "step", False),
        ("step 12 val_loss=0.5", "step", False),
        ("Step 12 Acc: 75.0", "step", False),
        ("step=10, skipped=0, lr=[1e-5]", "step", False),
        ("step 12 colr=0.5", "step", True),
        ("epoch 3 step 12", "epoch step", False),
        ("Epoch 3 [120/5000]", "epoch", False),
    ],
)
def test_the_shape_of_a_line_and_what_vouches_for_its_count(
    line: str, shape: str, bare: bool
) -> None:
    record = parse("plain", line)
    assert record is not None
    assert (record.shape, record.bare) == (shape, bare)


@pytest.mark.parametrize(
    "line", ["nvml poller: step=33 power=120W", "GPU monitor step=12 util=100", "train: 3 workers"]
)
def test_pollers_and_monitors_are_no_loops(line: str) -> None:
    assert parse("plain", line) is None


TRAINERS_OF_JAX: dict[str, Values] = {
    "[DECOUPLED NO-OP] completed step: 3, seconds: 0.500, loss: 9.875": (3, None, 9.875, 0.5),
    "completed profiler activation/deactivation step: 5": (5, None, None, None),
    "Progress on:train 19.0it/70.0it rate:76.8s/it remaining:1:05:15 elapsed:31:40 postfix:-": (19, 70, None, 76.8),
    "INFO Progress on:train 123it/10.0kit rate:2.0it/s remaining:1:03:21 elapsed:08:12 postfix:loss=3.21": (123, None, 3.21, 0.5),
    "Progress on:train 1.23kit/10.0kit rate:2.0it/s remaining:1:03:21 elapsed:08:12 postfix:loss=3.21": (None, None, 3.21, None),
    "Progress on:eval 3.00it/20.0it rate:2.0it/s remaining:00:08 elapsed:00:01 postfix:-": (None, None, None, None),
    "Completed eval step: 3, seconds: 0.500, running loss=6.512": (None, None, None, None),
    "eval metrics after step: 500, loss=6.512, total_weights=65536.0": (None, None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("line", TRAINERS_OF_JAX)
def test_trainers_of_jax(line: str) -> None:
    record = create("logs", "jax").parse(line)

    assert record is not None
    assert (record.step, record.total, record.loss, record.step_seconds) == TRAINERS_OF_JAX[line]
    assert record.step is not None or record.mark


@pytest.mark.parametrize(
    "line",
    [
        "completed step: the tokenizer",
        "Successfully completed step: 3",  # of an agent, an installer
        "Progress on:loading shards 3.00it/20.0it rate:2.0it/s remaining:00:08 elapsed:00:01 postfix:-",
        "Progress on:train -/850it rate:- remaining:? elapsed:00:00 postfix:-",
    ],
)
def test_lines_that_only_look_like_a_trainer_of_jax(line: str) -> None:
    assert create("logs", "jax").parse(line) is None


def test_a_bar_that_is_drawn_again_tells_nothing_new() -> None:
    line = "Progress on:train 1.23kit/10.0kit rate:2.0it/s remaining:1:03:21 elapsed:{} postfix:loss=3.21"
    one, again = (create("logs", "jax").parse(line.format(at)) for at in ("08:12", "08:22"))

    assert one == again
