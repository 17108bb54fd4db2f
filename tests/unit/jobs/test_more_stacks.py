"""Logs of stacks that were looked up in public issues and sources, their answers written down before they were read: right, or no step at all."""

import pytest

from mldebug.stall.signals import ProgressKind
from unit.jobs.test_field_logs import counted, progress_of

FUNASR = "(loss_avg_rank: LOSS), (loss_avg_slice: 0.409), (acc_avg_slice: 0.795), (lr: 1.165e-04), [('loss', 0.299)], {'data_load': '0.000', 'total_time': '0.947'}, GPU, memory: usage: 3.830 GB"  # fmt: skip
ANY = "any"
STACKS: dict[str, tuple[str, int, float | str | None]] = {
    "Tacotron 2": ("Train loss STEP LOSS Grad Norm 0.301234 1.24s/it", 112, 6.47),
    "Tacotron 2, validated": ("Train loss STEP LOSS Grad Norm 0.3 1.24s/it\nValidation loss STEP: 0.423000  ", 112, 6.47),
    "Habitat": ("2026-03-04 05:06:07,549 update: STEP\tfps: 123.188\t\n2026-03-04 05:06:07,550 update: STEP\tenv-time: 9232.576s\tpth-time: 1545.183s\tframes: 1331200", 112, None),
    "FunASR": ("[2026-03-04 05:06:07,137][root][INFO] - train, rank: 0, epoch: 0/50, step: STEP/1, total step: STEP, " + FUNASR, 112, ANY),
    "FunASR, slices": ("[2026-03-04 05:06:07,137][root][INFO] - train, rank: 0, epoch: 1/50, data_slice: 0/1, step_in_slice: STEP/2000, step_in_epoch: STEP, total step: 1STEP, " + FUNASR, 1112, ANY),
    "Snowfall": ("2026-03-04 05:06:07,123 INFO [mmi_train.py:200] batch STEP, epoch 1/10 global average objf: 0.5 over 123456.0 frames (100.0% kept), current batch average objf: 0.9 over 1200 frames (100.0% kept) avg time waiting for batch 0.1s", 112, None),
    "icefall, two losses": ("2026-03-04 05:06:07,518 INFO [train.py:518] (0/2) Epoch 0, batch STEP, loss[ctc_loss=0.7647, att_loss=0.7367, loss=LOSS, over 2223 frames.], tot_loss[ctc_loss=1.098, loss=1.088, over 438207.7 frames.], batch size: 8", 112, 6.47),
    "epochs and steps in brackets": ("1/5 (STEP/5000) loss: LOSS", 112, 6.47),
    "steps behind an epoch": ("Epoch[3](STEP/5000) Loss: LOSS", 112, 6.47),
    "steps behind an arrow": ("===> Epoch[2](STEP/400) loss: LOSS", 112, 6.47),
    "steps in brackets": ("(STEP/800) loss: LOSS, accuracy: 0.5", 112, 6.47),
    "steps behind a phase": ("Epoche: 3 [Training] (STEP/800) loss: LOSS, acc: 0.5123, c1: 1.20%", 112, 6.47),
    "samples in brackets": ("train: iters: STEP acc: 0.4500 (45/100) loss: LOSS elapsed: 0.5 s", 112, 6.47),
    "a dot behind the word": ("[27:42:45 < 05:26:11] Iter. STEP/120000 | train/total_loss: LOSS train/hm_loss: 0.429", 112, 6.47),
    "flashlight": ("epoch:        1 | nupdates:         STEP | lr: 0.000469 | lrcriterion: 0.000000 | runtime: 00:12:03 | bch(ms): 723.31 | loss:   LOSS | train-TER: 90.1", 112, 6.47),
    "RLlib": ("  training_iteration: STEP\n  num_agent_steps_trained: 4000\n  iterations_since_restore: 1", 112, None),
    "one figure a line": ("Iteration: \t STEP\nNumTrajs: \t 200\nNumTimesteps: \t 32549\nElapsed time\t 106.06 seconds", 112, None),
    "VISSL": ("INFO 2026-03-04 05:06:07,806 log_hooks.py: 277: Rank: 0; [ep: 0] iter: STEP; lr: 0.71785; loss: LOSS; btime(ms): 192; eta: 0:00:08; peak_mem(M): 4176;", 112, 6.47),
    "BasicSR": ("2026-03-04 05:06:07,390 INFO: [x..][epoch:207, iter:  20,STEP, lr:(1.000e-04,)] [eta: 1 day, 18:13:17, time (data): 0.365 (0.002)] l_g_pix: 3.1516e-04 ", 20112, ANY),
    "CSAIL": ("Epoch: [1][STEP/5000], Time: 2.27, Data: 0.01, lr_encoder: 0.019349, Accuracy: 62.36, Loss: LOSS", 112, 6.47),
    "OpenNMT": ("[2026-03-04 05:06:07,773 INFO] Step STEP/200000; acc:  31.18; ppl: 57.53; xent: 4.05; lr: 0.00028; 5092/261 tok/s;   6641 sec\n[2026-03-04 05:06:07,631 INFO] Loading dataset from x.train.0.pt, number of examples: 66620", 112, ANY),
    "Kaldi": ("2026-03-04 05:06:07,000 [steps/nnet3/chain/train.py:529 - train - INFO ] Iter: STEP/1299    Jobs: 3    Epoch: 0.55/6.0 (9.2% complete)    lr: 0.000285    ", 112, None),
    "Sockeye": ("[INFO:sockeye.training] Epoch[0] Batch [STEP]\tSpeed: 1234.56 samples/sec 30000.12 tokens/sec 4.50 updates/sec\tperplexity=512.300000", 112, ANY),
    "Acme": ("[Learner] Learner Steps = STEP | Learner Walltime = 100.123 | Loss = LOSS | Steps Per Second = 12.3", 112, 6.47),
    "slime": ("(MegatronTrainRayActor pid=12345) [2026-03-04 05:06:07] actor.py:200 - step STEP: {'train/loss': LOSS, 'train/grad_norm': 0.2}", 112, 6.47),
    "Gaussian splatting": ("Training progress:  23%|██▎       | STEP/30000 [03:21<10:22, 36.90it/s, Loss=LOSS]\n[ITER 7000] Saving Gaussians [26/10 00:00:00]", 112, 6.47),
    "DCGAN": ("[3/25][STEP/1583]\tLoss_D: 0.3456\tLoss_G: 5.1234\tD(x): 0.8612\tD(G(z)): 0.1234 / 0.0123", 112, None),
    "DCGAN, another epoch": ("[0/25][1500/1583] Loss_D: 0.3 Loss_G: 5.1\n[1/25][STEP/1583] Loss_D: 0.3 Loss_G: 5.1", 112, None),
    "WGAN": ("[3/25][STEP/1583][7] Loss_D: -0.345600 Loss_G: 5.123400", 112, None),
    "names of losses before the word": ("[0/30][STEP/40] D_Loss: 0.561936 G_Loss: 2.944061", 112, ANY),
    "Coqui": ("   --> TIME: 2026-03-04 05:06:07 -- Step: STEP/512 -- Global_Step: 1STEP", 1112, None),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_step_and_loss_are_what_was_written_down(name: str) -> None:
    line, step, loss = STACKS[name]
    progress, _ = progress_of(counted(line))
    assert progress.step == step
    if loss != ANY:
        assert progress.loss == (None if loss is None else pytest.approx(loss))


NO_STEP = {
    "FunASR validates": "[2026-03-04 05:06:07,137][root][INFO] - val, rank: 0, epoch: 1/50, step_in_slice: STEP/200, step_in_epoch: STEP, total step: 1STEP, " + FUNASR,
    "correct samples": "Accuracy: 45.0% (STEP/800) loss: LOSS",
    "correct samples of a test": "Test set: Average loss: LOSS, Accuracy: STEP/10000 (98%)",
    "an evaluation in brackets": "(STEP/200) val loss: LOSS",
    "an evaluation behind an epoch": "[3/25][STEP/1583] val_loss: LOSS",
    "an evaluation's mean behind an epoch": "[3/25][STEP/1583] avg_val_loss: LOSS",
    "an evaluation named behind the word": "[3/25][STEP/1583] Loss_val: LOSS",
    "shards": "[3/25][STEP/1583] lossless files",
    "an age": "last update: STEP s ago",
    "packages": "updates: STEP packages can be upgraded",
    "a cache": "update: STEP entries of the cache",
    "a saved iteration": "[INFO] Saving model and optimizer state at iteration STEP to ./logs/m/G_277000.pth",
    "ranks in brackets": "[STEP/128] loss: LOSS",
    "a day": "[STEP/11] train loss: LOSS",
    "epochs": "===> Epoch STEP Complete: Avg. Loss: LOSS time: 666.83",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_STEP)
def test_what_tells_no_step_has_none(name: str) -> None:
    progress, _ = progress_of(counted(NO_STEP[name]))
    assert progress.step is None


LOOP = "\n".join(f"  0%|    | {step}/9000 [00:28<11:41, 23.74it/s]" for step in range(600, 640, 3))
EVALUATION = "\n".join(f" {n}%|██  | {n}/20 [00:00<00:01, 40.1it/s]" for n in range(1, 21))


def test_a_bar_without_a_name_inside_the_loops_own_is_an_evaluation_and_no_step() -> None:
    progress, quiet = progress_of(f"{LOOP}\n{EVALUATION}")
    assert progress.step == 639
    assert quiet == 0.0  # it moves all the same
    assert progress_of(f"{LOOP}\n{EVALUATION}\n{LOOP}")[0].step == 639


def test_a_shorter_bar_after_the_end_of_the_longer_one_is_the_next_loop() -> None:
    ended = "\n".join(f"  9%|    | {step}/900 [00:28<00:00, 23.7it/s]" for step in range(890, 901))
    assert progress_of(f"{ended}\n{EVALUATION}")[0].step == 20


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("  0%|          | 0/1000000 [00:00<?, ?it/s]", False),
        ("step 0 loss 6.47", True),
        ("  0%|          | 1/1000000 [00:01<?, ?it/s]", True),
        ("loading", False),
    ],
)
def test_a_bar_at_0_is_no_step_that_was_made(line: str, made: bool) -> None:
    progress, _ = progress_of(line)
    assert progress.made_a_step is made
    zero = [one.value for one in progress.signals() if one.kind is ProgressKind.STEP]
    assert zero == ([0.0] if "| 0/" in line else [1.0] if "| 1/" in line else [])
