"""How long a step took, as a line of a log tells it: the unit behind its number, or before it as a name."""

import pytest

from mldebug.jobs.logs.step_seconds import seconds_of_step

LINES: dict[str, float | None] = {
    # behind the number
    "step 1 loss 6.47, 0.31 s/it": 0.31,
    "loss 2.1 2.5s/it": 2.5,
    "[4.031 sec/step, loss=6.4": 4.031,
    "step 3 4.0 it/s 12000 tok/s": 0.25,
    "step 1 2.5 s/it 3.2 samples/s": 2.5,
    "0.31 s/step 12 ms": 0.31,
    "loss: 6.4 (6.9)  time: 0.310s,  825.81/s  (0.320s,  800.0/s)  lr: 1.000e-03": 0.31,  # timm pads it
    "100 ms/step 10% done": 0.1,
    "speed: 2.0 step/s, ips": 0.5,
    # before it, a name: what stands before that is another figure
    "step 1 | loss 6.47 | s/step 0.31 | lr 3e-4": 0.31,
    "step 1 loss 6.47 s/step 0.31": 0.31,
    "step 1 loss 6.47 s/step 0.31 lr 3e-4": 0.31,
    "iter 1 loss: 6.47 s/it: 0.31": 0.31,
    "step=1 loss=6.47 ms/step=310 tok/s=2000": 0.31,
    "batch 1 of 800, sec/batch 0.31, loss 6.47": 0.31,
    "mel-spec. error : 1.2, s/b : 0.512": 0.512,
    "seconds per step: 0.3": 0.3,
    '"sec_per_step": 0.31': 0.31,
    "step 1 loss 6.47 it/s 4.0": 0.25,
    "loss=6.47, steps/s=4.0": 0.25,
    "loss: 6.47, iterations per second: 4.0": 0.25,
    "loss=6.47 batches_per_sec=4.0": 0.25,
    "global_step/sec: 4.0": 0.25,
    '{"step": 112, "loss": 6.47, "step_time_s": 0.31}': 0.31,
    '{"step": 112, "loss": 6.47, "step_time_ms": 310}': 0.31,
    # words of their own
    "step: 112 | loss: 6.47 | time/step: 1250.00ms | tokens/s: 4.19m": 1.25,
    "step: 112 | loss: 6.47 | time/step:  250.00ms": 0.25,
    "step: 112 | loss: 6.47 | time/step: 0.31": 0.31,
    "loss: 5.1, avg_reader_cost: 2.33 s, avg_batch_cost: 3.1 s, ips: 2.58": 3.1,
    "loss: 6.47, batch_cost: 0.41s, reader_cost: 0.01": 0.41,
    "[eta: 1 day, 2:03:04, time (data): 0.310 (0.002)] l_pix: 1e-02": 0.31,
    # controls: none of a step
    "eval_steps_per_second: 3.2": None,
    "samples/s 100": None,
    "12000 tok/s": None,
    "reader_cost: 0.1": None,
    "cost: 12.1 s": None,
}


@pytest.mark.parametrize("line", LINES)
def test_the_duration_that_stands_there(line: str) -> None:
    wanted = LINES[line]
    assert seconds_of_step(line) == (None if wanted is None else pytest.approx(wanted))
