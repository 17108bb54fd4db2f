"""Lines as programs print them in logs that people posted: the step and the loss that stand there, what tells of an evaluation, and settings that only look like progress."""

import pytest

from unit.jobs.test_field_logs import counted, progress_of

DAY = "2026-03-04 05:06:07"
STACKS: dict[str, tuple[str, str, int | None, float | None]] = {  # line, what follows, step, loss
    "Paddle": (f"[INFO {DAY},714 train.py:70] Pass 133, Batch STEP, Cost LOSS, {{'classification_error_evaluator': 0.73}}", f"[INFO {DAY},714 train.py:70] Test with Pass 133, Cost 2.4, {{'classification_error_evaluator': 0.7}}", 112, 6.47),
    "Paddle's trainer": ("I0304 05:06:07.796533 10456 TrainerInternal.cpp:163]  Batch=STEP samples=800000 AvgCost=2.51426 CurrentCost=LOSS Eval:  CurrentEval: ", "I0304 05:06:07.277237 10456 Tester.cpp:111]  Test samples=97383 cost=2.87493 Eval: ", 112, 6.47),
    "Paddle's pass": ("I0304 05:06:07.230159 10456 TrainerInternal.cpp:180]  Pass=23 Batch=STEP samples=904000 AvgCost=LOSS Eval: ", "", 112, 6.47),
    "BERT of DLL": (f"DLL {DAY}.614486 - Training Epoch: 1 Training Iteration: STEP  step_loss : LOSS  learning_rate : 1.58e-05 ", "", 112, 6.47),
    "steps below samples": ("Train Epoch: 4 [49920/141886 (35%)]     Loss: LOSS\ngrad_norm: 4.0 iteration: STEP", "", 112, 6.47),
    "MLX, micro-steps beside": ("[DBG] it=67 micro=7/10 loss=3.2 toks=108 grad_l2=1.2e+01\nIter STEP: Train loss LOSS, Learning Rate 1.0e-05, It/sec 17.5, Peak mem 1.4 GB", "", 112, 6.47),
    "fairseq 0.6": ("| epoch 010  STEP / 8223 loss=LOSS (6.5), wps=961, wpb=905, bsz=32, lr=0.001, gnorm=2.1", "| epoch 010 | valid on 'valid' subset  100 / 1311 loss=1.60\n| epoch 010 | valid on 'valid' subset | valid loss 1.94 | valid ppl 3.83", 112, 6.47),
    "fairseq 0.8": ("| epoch 001:    450 / 1891 loss=LOSS, nll_loss=1.8, ppl=188.05, ups=0.5, num_updates=STEP, lr=8.9e-05", "| epoch 001 | valid on 'valid' subset | valid_loss 8.1 | valid_nll_loss 6.8 | valid_ppl 118.06 | num_updates 200", 112, 6.47),
    "BigDL": ("[Epoch 1 28160000/28857522][Iteration STEP][Wall Clock 71.6s] Train 512000 in 1.3seconds. Throughput is 414236.66 records/second. Loss is LOSS.", "Loss is (Loss: 134.79276, count: 128, Average Loss: 1.05) ", 112, 6.47),
    "BioNeMo, NCCL's words behind the bar": ("Epoch 0:   6%|█   | STEP/500150 [6:28:43<94:39:17,  1.37it/s, loss=LOSS, v_num=95nc, global_step=3.2e+4][E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught: WorkNCCL(SeqNum=96120)", "", 112, 6.47),
    "parts with hyphens": (f"{DAY} | INFO | step 00000STEP/00000950 | step-time 28.8 sec | cross-entropy-loss LOSS | load-balance-loss 0.0018 | learning-rate 1.0e-06", "", 112, 6.47),
    "parts of a mixture of experts": ("step STEP | lb_loss 0.2 | z_loss 2.6 | ce_loss LOSS", "", 112, 6.47),
    "a policy's entropy": ("step STEP | pg_loss LOSS | entropy_loss 2.6", "", 112, 6.47),
    "SlowFast": ('[03/04 05:06:07][INFO] logging.py:  99: json_stats: {"_type": "train_iter", "epoch": "10/50", "eta": "8:54:59", "iter": "STEP/159", "loss": LOSS}', '[03/04 05:06:07][INFO] logging.py:  99: json_stats: {"_type": "val_iter", "epoch": "10/50", "eta": "0:35:44", "iter": "10/40"}', 112, 6.47),
    "SlowFast of before": ('[INFO: logging.py:   67]: json_stats: {"_type": "train_iter", "cur_epoch": "1", "cur_iter": "STEP", "eta": "1 day, 8:26:06", "loss": LOSS, "mode": "train"}', "", 112, 6.47),
    "fastText": ('{"progress":62.8,"loss":LOSS,"lr":0.018593,"words":1995STEP,"eta":"0h0m","eta_msec":0}', "", None, 6.47),
    "NiftyNet": (f"INFO:niftynet:{DAY},000: Training iter STEP, loss=LOSS (107.969888s)", "", 112, 6.47),
    "Kaldi, iterations": (f"{DAY},237 [steps/libs/acoustic_model.py:301 - train_one_iteration - INFO ] On iteration STEP, learning rate is 0.00171.", "", 112, None),
    "Kaldi and PyTorch": (f"{DAY},479 INFO [train.py:102] Process STEP/3161(6.327112%) global average objf: -0.5 over 1138432.0 frames, current batch average objf: -0.3 over 6400 frames, epoch 0", "", 112, None),
    "Chainer": ("     total [######....................] 35.54%\nthis epoch [###......] 10.84%\n     STEP iter, 7 epoch / 20 epochs\n   0.71428 iters/sec. Estimated time to finish: 2 days, 16:23:34.6.", "", 112, None),
    "an iteration and its seconds": ("ITERATION STEP (165.40s)\n\t- Objective:          28.35%", "", 112, None),
    "CNTK": (" Epoch[ 1 of 8]-Minibatch[ STEP- NEXT, 0.19%]: ce = 4.8 * 67; errs = 93% * 67; time = 1.2s", "Minibatch[1-900]: errs = 20.1% * 1000; ce = 0.84 * 1000", 113, None),
    "CNTK for Python": (" Minibatch[ STEP- NEXT]: loss = LOSS * 160, metric = 93.75% * 160;", " Minibatch[ 1- 500]: metric = 0.84% * 32000;", 113, 6.47),
    "packing estimates between bars": (" 32%|███▋  | STEP/873 [25:36<52:46,  5.35s/it]", f"[{DAY},123] [INFO] [axolotl.utils.dataloader._len_est:264] [PID:11100] [RANK:0] packing_efficiency_estimate: 0.77 total_num_tokens per device: 26275", 112, None),
    "U-2-Net, whose batch counts samples of the epoch": ("[epoch:   2/100000, batch:  8268/13617, ite: STEP] train loss: LOSS, tar: 0.169732 ", "l0: 0.192295, l1: 0.192301, l2: 0.197890", 112, 6.47),
    "a batch of the epoch alone": ("[epoch: 2/100, batch: STEP/13617, it/s: 3] train loss: LOSS", "", 112, 6.47),
    "Tesseract": ("At iteration 98/STEP/4140, Mean rms=4.144%, delta=43.655%, char train=100.89%, word train=99.867%, skip ratio=4.5%,  New worst char error = 100.89At iteration 60, stage 0, Eval Char error rate=100.30872 wrote checkpoint.", "", 112, None),
    "RSL-RL": ("                   Learning iteration STEP/1500                 \n\n               Total steps: 512 \n          Steps per second: 1581 \n     Mean surrogate loss: -0.0076\n     Iteration time: 0.16s", "", 112, -0.0076),
    "Flair": (f"{DAY},467 epoch 1 - iter STEP/249 - loss LOSS - samples/sec: 86.35 - lr: 0.000030", f"{DAY},571 DEV  : loss 0.03 - f-score 0.5586\n{DAY},571 TEST : loss 0.04 - f-score 0.5521", 112, 6.47),
    "nnU-Net": (f"{DAY}.307418: Epoch STEP\n{DAY}.932336: train_loss LOSS\n{DAY}.939337: val_loss 0.38\n{DAY}.947495: Epoch time: 134.63 s", "", None, 6.47),
    "SpeechBrain's file": ("epoch: 1, lr: 3.59e-05, steps: STEP, optimizer: Adam - train loss: LOSS - valid loss: 2.09e+02, valid ACC: 1.83e-01", "", 112, 6.47),
    "ML-Agents": ("INFO:mlagents.trainers: test: Target: Step: STEP. Time Elapsed: 80.900 s Mean Reward: 0.333. Std of Reward: 0.471. Training.", "", 112, None),
    "figures behind a table of names": ("train/loss_step,global_step,epoch,created_at\n0.25,49.0,0,2026-03-04 05:06:07", "", None, None),
    "fairseq, the figures of an epoch": ('2026-03-04 05:06:07 | INFO | train | {"epoch": 61, "train_loss": "LOSS", "train_nll_loss": "4.9", "train_num_updates": "STEP", "train_lr": "5e-05"}', '2026-03-04 05:06:07 | INFO | valid | {"epoch": 61, "valid_loss": "3.11", "valid_nll_loss": "1.3", "valid_num_updates": "70"}', 112, 6.47),
    "the Trainer's bar of a notebook": (" [ STEP/290 02:50 < 38:04, 0.12 it/s, Epoch 0.36/5]", "", 112, None),
    "Keras, one line an epoch": ("Epoch STEP/900\n1563/1563 - 12s - 8ms/step - accuracy: 0.5 - loss: LOSS - val_accuracy: 0.5 - val_loss: 1.1", "", 1563, 6.47),
    "Horovod, the loss below its batch": ("[1,0]<stdout>:Epoch 0/100, Batch STEP/29316\n[1,0]<stdout>:Total loss is  LOSS ETA is  7:19:40.2", "[1,0]<stdout>:val loss: 0.3", 112, 6.47),
    "DLRM": ("Finished training it STEP/306969 of epoch 0, 12.31 ms/it, loss LOSS, accuracy 76.512 %", "Testing at - 40/306969 of epoch 0, loss 0.132, accuracy 78.112 %, best 78.3 %", 112, 6.47),
    "DGL-KE": ("[proc 0][Train](STEP/24000) average pos_loss: 0.3123\n[proc 0][Train](STEP/24000) average loss: LOSS", "[proc 0][Train] 1000 steps take 8.312 seconds", 112, 6.47),
    "a loss below its step": ("Step: STEP\nLoss: LOSS", "Best loss: 0.3\nloss of the best: 0.2", 112, 6.47),
    "trlX": ("losses/total_loss: LOSS | losses/policy_loss: 0.02 | losses/value_loss: 0.10:  11%|█         | STEP/1000 [01:12<10:11,  1.45it/s]", "[rollout 32 / 128]:  25%|██▌       | 32/128 [00:11<00:33,  2.90it/s]", 112, 6.47),
    "a bar behind a tag": ("[train]:  11%|█         | STEP/1000 [01:12<10:11,  1.45it/s]", "[eval]:  40%|████      | 2/5 [00:11<00:33,  2.90it/s]", 112, None),
    "a bar behind a host": ("[worker-3]:  11%|█         | STEP/1000 [01:12<10:11,  1.45it/s]", "", 112, None),
    "a step and its evaluation": ("Step STEP/200 | train | total step 1STEP/2000 | loss LOSS", "Step 5/100 | eval | total step 1205/2000 | loss 3.0", 1112, 6.47),
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_step_and_loss_are_those_that_stand_there(name: str) -> None:
    line, after, step, loss = STACKS[name]
    progress, _ = progress_of(f"{counted(line)}\n{after}")
    assert progress.step == step
    assert progress.loss == (None if loss is None else pytest.approx(loss))


TRAINED = "\n".join(f"step {step} loss {7 - step / 100:.4f} lr 1e-4" for step in range(1, 54))
NOT_OF_TRAINING: dict[str, tuple[str, int | None]] = {
    "the Trainer's banner": "***** Running training *****\n  Num examples = 52,002\n  Num Epochs = 3\n  Total optimization steps = 900",
    "a cost in seconds": "INFO:root:Epoch[0] Time cost=12.1",
    "a test of Paddle's": "Test with Pass 3, Cost 2.4, {'error': 0.7}",
    "a total of training steps": "Total number of training steps: 900",
    "a maximum of update steps": "Max weight update steps = 900",
    "a number of steps": "[2026-03-04 05:06:07] number of optimizer steps: 900",
    "CNTK evaluates": "Minibatch[1-100]: errs = 20.1% * 1000; ce = 0.84 * 1000\nMinibatch[101-200]: errs = 20.1% * 1000",
    "CNTK's results": "Final Results: Minibatch[1-200]: errs = 20% * 2000",
    "arguments": "Namespace(batch_size=32, steps=500, lr=0.001, momentum=0.9, loss_weight=0.5, loss=2)",
    "arguments behind a logger": f"{DAY} - INFO - args: {{'lr': 0.001, 'loss': 1.0, 'step': 7, 'seed': 1}}",
    "arguments behind a colon": f"[{DAY}] [INFO] args: lr=0.1 loss=0.3 step=12",
    "a configuration": "TrainConfig(lr=0.001, step=200, loss=0.5, seed=3)",
    "hyperparameters": "hparams: lr=0.1 loss=0.3 step=12 seed=1",
    "settings by their keys": '{"lr": 0.001, "loss": 1.0, "step": 30, "seed": 1, "num_workers": 4, "optimizer": "adam"}',
    "settings of the Trainer's names": "{'loss': 1.0, 'step': 30, 'seed': 1, 'num_workers': 4, 'optimizer': 'adam'}",
    "settings that were found": "[I 2026-03-04 05:06:07,000] Trial 7 finished with value: 0.3 and parameters: {'step': 70, 'lr': 0.1, 'loss': 3.0}. Best is trial 3 with value: 0.2.",
    "settings of a training": "Training config: lr=0.1, loss=1.0, step=7",
    "a limit of the loss among settings": '{"lr": 0.001, "loss_scale": 1.0001, "max_loss": 3.1415, "step": 70, "seed": 1, "num_workers": 4, "optimizer": "adam"}',
    "settings without quotes": "lr=0.1 seed=1 num_workers=4 epochs=3 step=7 loss=1.0",
    "a stage that evaluates": "stage=val step=78 loss=3.0",
    "settings over several lines": 'Training configuration: {\n    "train epochs": 1,\n    "train steps": 250,\n    "gradient accumulation steps": 1\n}',
    "a column of an evaluation": "Step 70/100 | validation | total step 170/1000 | loss 3.0",
    "the mode is an evaluation": '{"mode": "val", "epoch": 1, "iter": 78, "loss": 3.0}',
    "the split is an evaluation's": "step=78 split=test loss=3.0",
    "an epoch's validation": "Epoch 3 validation: loss 0.4",
    "an epoch's column of a validation": "epoch 3 | valid | loss 0.4",
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_OF_TRAINING)
def test_an_evaluation_or_a_setting_changes_neither_step_nor_loss(name: str) -> None:
    progress, _ = progress_of(f"{TRAINED}\n{NOT_OF_TRAINING[name]}")
    assert progress.step == 53
    assert progress.loss == pytest.approx(6.47)
    assert progress_of(NOT_OF_TRAINING[name])[0].step is None


OF_TRAINING: dict[str, tuple[str, int | None]] = {
    "a column before": ("epoch 3 | step STEP | train | loss LOSS | valid | loss 0.6", 112),
    "an epoch whose evaluation took time": ("Epoch 3, eval took 12 s, train loss: LOSS", None),
    "the mode is training": ('{"mode": "train", "epoch": 1, "iter": STEP, "loss": LOSS}', 112),
    "a file of settings that logs": ("[config.py:12] step STEP loss LOSS", 112),
    "a record over several lines": ('{\n    "step": STEP,\n    "loss": LOSS\n}', 112),
    "a seed beside the figures": ('{"seed": 1, "batch_size": 32, "step": STEP, "loss": LOSS}', 112),
    "three settings beside a loss that was measured": ('{"step": STEP, "loss": LOSS, "batch_size": 32, "num_workers": 4, "seed": 1}', 112),
    "settings of the Trainer's beside a loss that was measured": ("{'step': STEP, 'loss': LOSS, 'weight_decay': 0.1, 'optimizer': 'adamw', 'seed': 1}", 112),
    "a schedule's figures": ("step STEP lr: 0.1 momentum: 0.9 weight_decay: 0.05 loss: LOSS", 112),
    "figures in brackets": ("Metrics(step=STEP, loss=LOSS, lr=0.001)", 112),
    # words of settings beside a count that settings never have
    "parameters behind the figures": ("step=STEP | loss=LOSS | lr 3e-4 | params: 124.4M", 112),
    "parameters with their unit": ("step STEP loss LOSS num_params(M): 124.4", 112),
    "options behind the figures": ("step STEP - loss LOSS - options: fused", 112),
    "the name of a configuration": ("2026-03-04 05:06:07 - INFO - config: gpt2-small step STEP loss LOSS", 112),
    "the seed of a sweep in a tag": ("[seed=1 num_layers=12 batch_size=64] step=STEP loss=LOSS", 112),
    "settings before a count in words": ("args.epochs=3 | args.seed=1 | args.dropout=0.1 | step STEP | loss LOSS", 112),
    "settings behind a count in words": ("step STEP loss LOSS seed: 1 batch_size: 32 optimizer: adamw", 112),
    "settings beside a part of all": ("train: epochs: 3/10, seed: 1, dropout: 0.1, step: STEP, loss: LOSS", 112),
    "settings beside a dict's epoch": ('{"epoch": 3, "epochs": 10, "step": STEP, "loss": LOSS, "batch_size": 32, "optimizer": "adamw"}', 112),
    "parameters before the figures": ("params: 124M | step: STEP | loss: LOSS", 112),
    "settings beside a time": ('{"time": 1700000000.1, "step": STEP, "loss": LOSS, "seed": 1, "num_workers": 4, "optimizer": "adam"}', 112),
    "settings beside a norm": ('{"step": STEP, "loss": LOSS, "grad_norm": 1.2, "seed": 1, "n_layers": 4, "batch_size": 8}', 112),
    "measures of hidden layers": ("step=STEP loss=LOSS hidden_norm=1.2 hidden_std=0.3 hidden_max=9.1 workers=4", 112),
    "schedules": ("step=STEP, loss=LOSS, momentum: 0.9, weight_decay: 0.1, dropout: 0.1, gamma: 0.99", 112),
    "schedules of the Trainer": ("{'loss': LOSS, 'weight_decay': 0.01, 'momentum': 0.9, 'dropout': 0.1, 'epoch': 0.01}", None),
    "a record over several lines, in the plural": ('{\n    "steps": STEP,\n    "loss": LOSS\n}', 112),
    # words of evaluations beside training
    "an evaluation's column behind the loss": ("step: STEP | loss: LOSS | val | loss: 7.5", 112),
    "an epoch's evaluation before its loss of training": ("Epoch 3: validation acc 0.91 | training set loss: LOSS", None),
    "both losses of an epoch, training's last": ("Epoch 3: validation: loss 7.7, train: loss LOSS", None),
    "both losses of an epoch, training's first": ("Epoch 3: train loss: LOSS, validation: loss 7.7", None),
    "both splits": ("step STEP split=train loss LOSS split=valid loss 7.7", 112),
    "a stage of a deployment": ("[stage=dev] step=STEP loss=LOSS", 112),
    "a type of a deployment": ("run_type=test step=STEP loss=LOSS", 112),
    "how often one evaluates": ("Epoch 3 | eval every 5 | loss: LOSS", None),
    "testing in words": ("testing the new kernels: step STEP loss LOSS", 112),
    "a test on a node": ("run test on node-3: step STEP loss LOSS", 112),
    "cross entropy in words": ("step STEP, cross entropy loss: LOSS, entropy loss: 0.3", 112),
    "cross entropy beside a part": ("step STEP | cross_entropy_loss LOSS | kl_loss 0.1", 112),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TRAINING)
def test_words_of_settings_and_evaluations_do_not_take_a_step_from_training(name: str) -> None:
    line, step = OF_TRAINING[name]
    progress, _ = progress_of(counted(line))
    assert progress.step == step
    assert progress.loss == pytest.approx(6.47)


def test_the_bar_of_samples_drawn_amid_training_tells_no_step_time() -> None:
    """As diffusers draws them: without a description, with a total and a pace of their own."""
    bars = "\n".join(f"{pace:3}%|███   | {pace // 2}/50 [00:05<00:05,  5.00it/s]" for pace in (0, 50, 100))  # fmt: skip
    line = "Steps:  12%|█▏   | STEP/900 [00:30<03:20,  4.00it/s, lr=1e-5, step_loss=LOSS]"
    progress, _ = progress_of(f"{counted(line)}\n{bars}")
    assert (progress.step, progress.step_seconds) == (112, pytest.approx(0.25))
    after, _ = progress_of(f"{counted(line)}\n{bars}\n{counted(line.replace('4.00', '2.00'), 113, 118)}")  # fmt: skip
    assert (after.step, after.step_seconds) == (118, pytest.approx(0.5))
