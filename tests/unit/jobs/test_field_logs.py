"""Logs as frameworks, launchers and containers write them: the step, the loss and the step time that stand there, and nothing else."""

import json
from itertools import product

import pytest

from mldebug.core.plugins import create, names
from mldebug.jobs.logs.counter_kind import CounterKind, kind_of
from mldebug.jobs.logs.parser import LogParser
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.signals import ProgressKind

PAUSE = 0.25  # seconds between two lines
RED, END = "\x1b[36m", "\x1b[0m"


def progress_of(text: str) -> tuple[LogProgress, float]:
    """What the log of a run has shown line by line, and for how long it has shown nothing new at its end."""
    parser = LogParser([create("logs", name) for name in names("logs") if name != "regex"])
    progress, now, moved_at = LogProgress(), 0.0, 0.0
    for line in text.replace("\r", "\n").split("\n"):
        now += PAUSE
        progress.take(tuple(parser.feed(f"{line}\n".encode())), len(line), now)
        moved_at = progress.moved_at or moved_at
    return progress, now - moved_at


def counted(line: str, first: int = 107, last: int = 112) -> str:
    """Return lines in which STEP counts up, and LOSS falls to 6.47."""
    return "\n".join(
        line.replace("STEP", str(step)).replace("NEXT", str(step + 1)).replace("LOSS", f"{6.47 + (last - step) / 100:.4f}")
        for step in range(first, last + 1)
    )  # fmt: skip


Expected = tuple[int | None, float | None, float | None]  # step, loss, step time in s
STACKS: dict[str, tuple[str, Expected]] = {
    # bars
    "tqdm": (" 12%|█▏   | STEP/900 [00:30<12:00,  2.50it/s, loss=LOSS]", (112, 6.47, 0.4)),
    "tqdm, ascii": ("12%|#2        | STEP/900 [00:30<12:00,  2.50s/it]", (112, None, 2.5)),
    "tqdm, steps": ("Training: 12%|█▏   | STEP/900 [00:30<12:00,  4.00step/s]", (112, None, 0.25)),
    "tqdm, batches": ("Epoch 1: 12%|█▏   | STEP/900 [00:30<12:00,  4.00batch/s]", (112, None, 0.25)),
    "diffusers": ("Steps:   5%|█▏ | STEP/2000 [00:30<12:00,  2.51s/it, lr=1e-5, step_loss=LOSS]", (112, 6.47, 2.51)),
    "kohya": ("steps:   0%|█▏ | STEP/17824 [00:30<12:00,  1.49s/it, avr_loss=LOSS]", (112, 6.47, 1.49)),
    "torchtune": ("1|STEP|Loss: LOSS:   3%|▎  | STEP/1564 [00:12<05:23,  4.00it/s]", (112, 6.47, 0.25)),
    "llama-cookbook": (
        "Training Epoch: 1/3, step STEP/960 completed (loss: LOSS):  3%|█▌ | STEP/960 [00:14<07:03,  4.00s/it]", (112, 6.47, 4.0),
    ),
    "colossal": ("Epoch 1, Step STEP, Loss: LOSS:   1%|▏ | STEP/1440 [00:02<02:20,  1.00it/s]", (112, 6.47, 1.0)),
    "lightning, no bar": ("Epoch 80:  67% STEP/150 [02:53<01:18, 15.76s/it, loss=LOSS, v_num=l1_0]", (112, 6.47, 15.76)),
    "lightning, second epoch": ("Epoch 1: 3%|▎ | STEP/3015 [1:42<55:37, v_num=0, train_loss=LOSS, global_step=3127.0]", (3127, 6.47, None)),
    "yolov5": ("      0/99     21.5G    0.1212   0.08502   0.04532        17      1280:   2% STEP/1480 [00:25<24:42, 10.22s/it]", (112, None, 10.22)),
    "ultralytics": ("      3/100      10.4G     0.4635     0.2344      0.805       1578        640: 56% ━━━━━━╸───── STEP/199 4.0it/s 27.1s<20.9s", (112, None, 0.25)),
    "rich": ("Epoch 4/9  ━━━━━━━━━╸━━━━━ STEP/291 0:00:33 • 0:00:09 4.00it/s v_num: 0.000 loss: LOSS", (112, 6.47, 0.25)),
    "rich, ascii": ("Epoch 4    --------------- ---- STEP/291 0:00:33 • 0:00:09 4.00it/s loss: LOSS ", (112, 6.47, 0.25)),
    "rich, no rate yet": ("Epoch 0/9 ━━━━━━━━━━━━━━━ STEP/291 0:00:33 • -:--:-- 0.00it/s", (112, None, None)),
    "keras": ("STEP/469 ━━━━━━━━━━━━━━━━━━━━ 1:05 250ms/step - accuracy: 0.5 - loss: LOSS", (112, 6.47, 0.25)),
    "tqdm-loggable": ("Progress on:train STEPit/5.00kit rate:1.2s/it remaining:2:18:05 elapsed:04:45 postfix:loss=LOSS", (112, 6.47, 1.2)),
    "openrlhf": ("Episode [1/1]:  92%|█████▏| STEP/120 [03:32<00:19, 19.50s/it]", (112, None, 19.5)),
    # dicts and JSON
    "trainer": ("{'loss': LOSS, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.STEP}", (None, 6.47, None)),
    "ms-swift": ("{'loss': LOSS, 'memory(GiB)': 69.19, 'train_speed(iter/s)': 0.25, 'epoch': 0.26, 'global_step/max_steps': 'STEP/940'}", (112, 6.47, 4.0)),
    "ms-swift, megatron": ("{'loss': LOSS, 'load_balancing_loss': 1.04, 'iteration': 'STEP/10635', 'train_speed(s/it)': 116.0}", (112, 6.47, 116.0)),
    "fairseq, json": ('2026-03-04 05:06:07 | INFO | train_inner | {"epoch": 1, "loss": "LOSS", "ppl": "602", "num_updates": "STEP", "lr": "2.8e-07"}', (112, 6.47, None)),
    "jsonl": ('{"step": STEP, "train/loss": LOSS, "eval/loss": 0.1}', (112, 6.47, None)),
    # lines
    "megatron": (" iteration    STEP/  320000 | elapsed time per iteration (ms): 250.0 | lm loss: LOSS | loss scale: 4096.0 |", (112, 6.47, 0.25)),
    "gpt-neox": (" samples/sec: 51.2 | iteration    STEP/  320000 | elapsed time per iteration (ms): 250.0 | lm_loss: LOSS | loss scale: 4096.0 |", (112, 6.47, 0.25)),
    "nemo 2": ("Training epoch 3, iteration STEP/149 | lr: 3e-05 | global_step: 4STEP | reduced_train_loss: LOSS | train_step_timing in s: 0.25 | val_loss: 4.1", (4112, 6.47, 0.25)),
    "verl": ("step:STEP - actor/pg_loss:0.04 - actor/kl_loss:0.01 - actor/loss:LOSS - training/global_step:STEP - timing_s/gen:29.6", (112, 6.47, None)),
    "icefall": ("2026-03-04 05:06:07,635 INFO [train.py:1055] (1/2) Epoch 1, batch STEP, loss[loss=LOSS, simple_loss=0.03, over 19.00 frames. ], tot_loss[loss=0.04], batch size: 66", (112, 6.47, None)),
    "clearervoice": ("Train Epoch: 0/100 Step: STEP/965 | 2.0s/batch | lr 5.0000e-04 || Mask_Loss LOSS", (112, 6.47, 2.0)),
    "dinov2": ("I20260304 05:06:07 1234 dinov2 helpers.py:103] Training  [ STEP/125000]  eta: 1 day, 0:00:00  lr: 0.0  total_loss: LOSS (11.0)  dino_local_crops_loss: 8.1  time: 0.512345  data: 0.000123", (112, 6.47, 0.512345)),
    "torchvision": ("Epoch: [0]  [STEP/5005]  eta: 0:40:00  lr: 0.1  loss: LOSS (6.9)  time: 0.25  data: 0.02  max mem: 3000", (112, 6.47, 0.25)),
    "mmengine": ("03/04 05:06:07 - mmengine - INFO - Epoch(train)   [1][ STEP/2566]  lr: 3.9e-04  eta: 5 days, 16:43:34  time: 0.6257  data_time: 0.0032  loss: LOSS  loss_cls: 1.0", (112, 6.47, 0.6257)),
    "detectron2": ("[03/04 05:06:07] d2.utils.events INFO:  eta: 1:21:58  iter: STEP  total_loss: LOSS  loss_cls: 0.65  time: 0.25  last_time: 0.58  data_time: 0.01  lr: 0.008", (112, 6.47, 0.25)),
    "tensorflow": ("INFO:tensorflow:global step STEP: loss = LOSS (17.053 sec/step)", (112, 6.47, 17.053)),
    "maxtext": ("I0304 05:06:07.531340 138304841739136 metric_logger.py:226] completed step: STEP, seconds: 10.228, TFLOP/s/device: 350.8, loss: LOSS, lm_loss: 7", (112, 6.47, 10.228)),
    "modded-nanogpt": ("step:STEP/20000 train_loss:LOSS train_time:4601ms step_avg:43.5ms", (112, 6.47, 0.0435)),
    "nanogpt": ("iter STEP: loss LOSS, time 250.00ms, mfu 30.00%", (112, 6.47, 0.25)),
    "number first": ("STEP | loss LOSS | lr 3.000000e-04 | 13808.97ms", (112, 6.47, None)),
    "number first, tabs": ("STEP\tloss=LOSS\tlr=3e-4", (112, 6.47, None)),
    "openpcdet": ("2026-03-04 05:06:07,377   INFO  Train:    1/3 ( 33%) [ STEP/323 ( 15%)]  Loss: LOSS (81.7)  LR: 1.3e-04  Time cost: 00:15/01:25 [00:15/04:48]", (112, 6.47, None)),
    "espnet": ("[node1] 2026-03-04 05:06:07,446 (trainer:486) INFO: 5epoch:train:50-STEPbatch: iter_time=0.001, loss=LOSS, train_time=0.25", (112, 6.47, 0.25)),
    # blocks
    "composer": ("[batch=STEP/3200]:\n\t Train time/epoch: 0\n\t Train time/batch: STEP\n\t Train loss/train/total: LOSS\n\t Train throughput/batches_per_sec: 0.5", (112, 6.47, None)),
    "olmo": ("2026-03-04 05:06:11.181 node-1:0  olmo.train:908  INFO    [step=STEP/739328,epoch=0]\n    optim/total_grad_norm=231.7\n    train/CrossEntropyLoss=LOSS\n    train/Perplexity=195,153", (112, 6.47, None)),
    "olmo-core": ("2026-03-04 05:06:11 INFO [olmo_core.train.callbacks.console_logger:68] [step=STEP/2000,epoch=0,eta=5h11m]\n    train/CE loss=LOSS\n    train/PPL=511.9", (112, 6.47, None)),
    "coqui": (f"\n{RED}   --> TIME: 2026-03-04 05:06:07 -- Step: 9/1250 -- Global_step: 5STEP{END}\n     | > loss: LOSS  (6.1)\n     | > Step_time: 0.4321  (0.43)", (5112, 6.47, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_of_each_stack_the_step_the_loss_and_the_time_are_read(name: str) -> None:
    line, (step, loss, seconds) = STACKS[name]
    progress, quiet = progress_of(counted(line))
    assert progress.step == step
    assert progress.loss == (None if loss is None else pytest.approx(loss))
    assert progress.step_seconds == (None if seconds is None else pytest.approx(seconds))
    assert quiet < 5 * PAUSE


LABELS = {
    "srun": "3: ",
    "pdsh": "node-1: ",
    "a host with test in its name": "gpu-test-3: ",
    "a host of the domain": "gpu7.train.example.org: ",
    "mpirun": "[1,0]<stderr>:",
    "torchrun": "[rank0]: ",
    "torchrun, tee": "[default0]:",
    "Ray": f"{RED}(WorkerDict pid=1234){END} ",
    "Ray, another node": "(RayTrainWorker pid=12, ip=10.0.0.1) ",
    "CRI": "2026-01-02T03:04:05.678901234Z stderr F ",
    "CRI and torchrun": "2026-01-02T03:04:05.678901234+01:00 stdout F [rank0]: ",
    "logging": "2026-01-02 03:04:05,678 - INFO - ",
    "logging, brackets": "[2026-01-02 03:04:05] [INFO] ",
    "absl and a rank": "[rank0]:2026-01-02 03:04:05,678 INFO ",
}
LABELLED = ("tqdm", "lightning, no bar", "rich", "keras", "diffusers", "tqdm-loggable", "ms-swift", "jsonl", "megatron", "number first", "nanogpt", "espnet")  # fmt: skip


OF_LOGGERS = {label for label in LABELS if label.startswith(("logging", "absl"))}
DRAWN = ("keras", "number first")  # a bar and a table, which no logger writes


@pytest.mark.parametrize(
    ("name", "label"),
    [it for it in product(LABELLED, LABELS) if it[0] not in DRAWN or it[1] not in OF_LOGGERS],
)
def test_a_label_before_a_line_changes_nothing(name: str, label: str) -> None:
    line, (step, loss, seconds) = STACKS[name]
    progress, _ = progress_of(counted(LABELS[label] + line))
    assert progress.step == step
    assert progress.loss == (None if loss is None else pytest.approx(loss))
    assert progress.step_seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("close", ["\n", "\r"])
def test_lines_inside_dockers_json_are_the_same(name: str, close: str) -> None:
    line, (step, loss, _) = STACKS[name]
    texts = counted(line).split("\n")
    docker = [json.dumps({"log": text + close, "stream": "stderr", "time": "2026-01-02T03:04:05.6Z"}, ensure_ascii=False) for text in texts]  # fmt: skip
    progress, _ = progress_of("\n".join(docker))
    assert (progress.step, progress.loss) == (step, None if loss is None else pytest.approx(loss))


def test_several_bars_in_one_line_of_docker() -> None:
    bars = "".join(f"\r 2%|█▏ | {step}/4000 [00:30<12:00,  2.50it/s]" for step in range(100, 105))
    progress, _ = progress_of(json.dumps({"log": f"{bars}\n", "stream": "stderr", "time": "x"}))
    assert progress.step == 104


@pytest.mark.parametrize(
    "line", ['{"log": 3, "stream": "x"}', '{"log": "step 12 loss 1"', '{"log":' * 5000, '{"log": null}']
)  # fmt: skip
def test_what_is_no_line_of_docker_is_a_line_like_others(line: str) -> None:
    progress, _ = progress_of(line)
    assert progress.loss is None or progress.loss == 1


# --- what is no training ------------------------------------------------------------------------

BAR = ":   12%|█▏    | STEP/900 [00:30<12:00,  2.50it/s]"
PREPARATIONS = [
    *(f"{what}{BAR}" for what in (
        "Packing train dataset", "Tokenizing train dataset (num_proc=8)", "Applying chat template to train dataset", "Truncating train dataset",
        "Running tokenizer on train dataset", "Filtering train >1024 tokens", "Map (num_proc=8)", "Filter", "Generating train split",
        "train: Scanning /data/set/labels/train... 50 images, 0 backgrounds, 0 corrupt", "train: Caching images (2.1GB RAM)", "Loading pretrained weights",
        "Loading checkpoint shards", "Loading safetensors checkpoint shards", "Fetching 12 files", "Downloading shards", "Resolving data files",
        "Iterating shards", "ParquetWriter", "Solving constraints", "Building train index", "Writing step files", "Processed prompts",
        "Saving the dataset (3/8 shards)", "Capturing CUDA graph shapes", "Extracting train features", "Creating json from Arrow format",
        "Preprocessing train texts", "[prefetcher] Iterating over batches", "Uploading step_100",
    )),
    "Generating train split:   5%|   | STEP00/50000 [00:01<00:20, 9812.33 examples/s]",
    "   5%|▌   | STEP0/50000 [00:01<00:20, 9812.33 examples/s]",
    "model-00001-of-3.safetensors:  12%|█▏ | STEP/900 [00:30<12:00,  2.50MB/s]",
    "Sanity Checking: |          | STEP/? [00:00<?, ?it/s]",
    "   ━━━━━━ STEP/900 MB 5.0 MB/s eta 0:00:01",
    "Downloading ━━━━━━╸━━━━ STEP/900 0:00:33 • 0:00:09 4.00it/s",
    '  "eval_steps": STEP,',
    '  "max_steps": STEP,',
    "max_steps: STEP",
    "Dumping profiler traces at step STEP",
    "Training starts at step STEP.",
    "Will save a checkpoint every step STEP",
    "Resumed from step STEP",
    "loss_scale: STEP",
]  # fmt: skip


@pytest.mark.parametrize("line", PREPARATIONS)
def test_preparation_has_no_step(line: str) -> None:
    progress, _ = progress_of(counted(line))
    assert progress.step is None


BACKGROUNDS = [
    "[packer] packed sequence batch STEP/4000 avg_len=812",
    "[prefetcher] filled buffer batch STEP/4000",
    "sampler: drew step STEP of 9000 temperature=0.7",
    "queue depth 12, batch STEP/4000 ready",
    "metrics thread: flushed iteration STEP/500",
    "watchdog: alive at step STEP",
    *(line for line in PREPARATIONS if "%|" in line and "dataset" not in line),
]


@pytest.mark.parametrize("line", BACKGROUNDS)
def test_a_counter_of_another_thread_keeps_no_hang_alive(line: str) -> None:
    training = "\n".join(f"step {step} loss {9 - step / 100:.3f}" for step in range(1, 13))
    progress, quiet = progress_of(f"{training}\n{counted(line, 1, 30)}")
    assert progress.step == 12
    assert quiet >= 30 * PAUSE


@pytest.mark.parametrize(
    "line",
    [
        "batch STEP/4000",
        "[batch STEP/4000]",
        "eval step STEP/100 acc=0.5",
        " 12%|█▏  | STEP/900 [00:30<12:00,  2.50it/s]",
        "Validation:  12%|█▏  | STEP/900 [00:30<12:00,  2.50it/s]",
        "step STEP loss 1.STEP",
        "generated samples: step STEP reward 0.5",
    ],
)
def test_an_evaluation_and_the_loop_itself_are_progress_after_the_rhythm_is_known(
    line: str,
) -> None:
    training = "\n".join(f"step {step} loss {9 - step / 100:.3f}" for step in range(1, 13))
    _, quiet = progress_of(f"{training}\n{counted(line, 13, 43)}")
    assert quiet < 5 * PAUSE


EVALUATIONS = [
    "03/04 05:06:07 - mmengine - INFO - Epoch(val) [10][STEP/4809]    eta: 0:06:54  time: 0.5256  data_time: 0.0006  memory: 979",
    "Test: [  STEP/ 300]  Time: 0.123 (0.130)  Loss:   0.5123 (0.5200)  Acc@1: 78.125 (77.0)",
    "Test:  [  STEP/500]  eta: 0:01:02  loss: 0.5123 (0.52)  time: 0.1  data: 0.0  max mem: 3000",
    "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95):   10%|█ | STEP/300 [00:30<04:30,  1.00it/s]",
    "[03/04 05:06:07] d2.evaluation.evaluator INFO: Inference done STEP/5000. Dataloading: 0.0013 s/iter. Eval: 0.0002 s/iter.",
    "[node1] 2026-03-04 05:06:07,446 (trainer:486) INFO: 5epoch:valid:10-STEPbatch: loss=1.7",
    "eval metrics after step: STEP, loss=10.374, total_weights=1966080.0",
    "2026-03-04 05:06:07 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 8.STEP | nll_loss 6.88 | num_updates STEP",
    "Evaluating step STEP/50: loss 0.3",
    "Evaluating: STEP/500",
    "[rank0]: Validation [STEP/500]",
    "2026-03-04 05:06:07,123 - train - INFO - eval STEP of 500",
    "2026-03-04 05:06:07 INFO Validating (STEP/500)",
    "Validation  ━━━━━━━━━╸━━━━━ STEP/291 0:00:33 • 0:00:09 4.00it/s",
    "Progress on:eval STEPit/500it rate:1.2s/it remaining:2:18 elapsed:04:45 postfix:loss=0.1",
]  # fmt: skip


@pytest.mark.parametrize("line", EVALUATIONS)
def test_an_evaluation_is_progress_but_neither_its_step_nor_its_loss_is_trainings(
    line: str,
) -> None:
    training = "\n".join(f"completed step: {step}, seconds: 10.2, loss: 6.{step}" for step in range(1, 13))  # fmt: skip
    progress, quiet = progress_of(f"{training}\n{counted(line)}")
    assert (progress.step, progress.loss) == (12, 6.12)
    assert quiet < 5 * PAUSE


@pytest.mark.parametrize(
    "line",
    [
        "eval STEP/12/2026 began",
        "eval split STEP/12",
        "Tokenizing validation: STEP/12",
        "/data/eval/STEP/12",
        "valid STEP/2.5",
        "evaluated STEP/12",
    ],
)
def test_a_line_that_is_about_an_evaluation_does_not_count_one(line: str) -> None:
    assert progress_of(counted(line))[0].evaluations == 0


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("INFO Valid 12/12 checksums", [0]),
        ("Validating 1/3 shards\nValidating 2/3 shards\nValidating 3/3 shards", [0]),
        (counted("Evaluating: STEP/500", 1, 40), [0]),
        ("Evaluating: 1/500\ntrain_loss -0.5", []),
        ("Evaluating: 1/500\nstep 1 loss 0.5", [1]),
    ],
)
def test_an_evaluation_before_the_first_step_is_none(text: str, steps: list[int]) -> None:
    """The start behind it had the 45 s of a run that makes steps."""
    signals = progress_of(text)[0].signals()
    assert [one.value for one in signals if one.kind is ProgressKind.STEP] == steps


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        ("", CounterKind.TRAINING), ("Training", CounterKind.TRAINING), ("Fine-tuning", CounterKind.TRAINING), ("train", CounterKind.TRAINING), ("Epoch 3/10", CounterKind.TRAINING),
        ("Iteration", CounterKind.TRAINING), ("It", CounterKind.TRAINING), ("optimizer steps", CounterKind.TRAINING), ("Epoch 1 | running loss 0.3", CounterKind.TRAINING),
        ("Validation DataLoader 0", CounterKind.EVALUATION), ("Evaluating", CounterKind.EVALUATION), ("Testing", CounterKind.EVALUATION), ("Predicting", CounterKind.EVALUATION),
        ("val epoch 3", CounterKind.EVALUATION), ("latest epoch", CounterKind.TRAINING), ("contest step", CounterKind.TRAINING), ("constraints", CounterKind.OTHER),
        ("Some other thing", CounterKind.OTHER), ("Loading train shards", CounterKind.OTHER),
    ],
)  # fmt: skip
def test_the_words_of_a_description_stand_for_a_phase(words: str, phase: CounterKind) -> None:
    assert kind_of(words) is phase
