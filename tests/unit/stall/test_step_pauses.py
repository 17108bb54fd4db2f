"""An evaluation or a checkpoint in which nothing moves for a minute is no stall; what hangs there is named all the same, and what hangs in
a step as early as ever.
"""

import pytest

from mldebug.capture.step_pauses import stands_in_pause
from mldebug.stall.signals import ProgressKind
from shared.stall.plots import FSYNC
from shared.stall.traces import JOINS, LOADS, SLEEPS, SPINS, TRAINS, WAITS, WORKS, Does, Run, watch

LOOKS = 5.0
IN_STEP = "training_step (train.py:31)\nfit (lightning/pytorch/trainer/trainer.py:560)"
IN_EVALUATION = "evaluate (train.py:40)\n" + IN_STEP
IN_CHECKPOINT = "_save (transformers/trainer.py:3981)\nsave_model (transformers/trainer.py:3900)\n" + IN_STEP  # fmt: skip

STILL: dict[str, Does] = {
    "a server that computes the metrics": SLEEPS._replace(class_name="socket"),
    "a child that idles": SLEEPS._replace(class_name="child_wait"),
    "an upload in a thread": JOINS,
    "a future": SLEEPS._replace(class_name="future"),
    "storage": FSYNC,
    "a poll with pauses": SLEEPS,
    "a data loader of its own": LOADS,
}


def standing(does: Does, frames: str) -> Does:
    """The same, in these Python frames."""
    return does._replace(doing=frames, stands=True)


def stepping(run: Run, seconds: float, rate: float = 25.0) -> Run:
    for _ in range(int(seconds / LOOKS)):
        run.at += LOOKS
        before = run.signals.get(ProgressKind.STEP)
        run.signal(ProgressKind.STEP, (before.value if before else 0) + rate * LOOKS)
        run.started = True
        run.look(TRAINS)
    return run


def trained(steady: float) -> Run:
    """A run that has loaded for 20 s, and then made 25 steps a second for so long."""
    return stepping(Run(interval=LOOKS).play(20, WORKS), steady)


def opened(run: Run, hung: float, **settings: float) -> list[float]:
    """Seconds from that moment to each alarm."""
    return [at - hung for at in watch(run.looks, interval=LOOKS, **settings).opened]


def begun(run: Run) -> float:
    return run.at - run.looks[0].at


@pytest.mark.parametrize("frames", [IN_EVALUATION, IN_CHECKPOINT], ids=("evaluation", "checkpoint"))
@pytest.mark.parametrize("steady", [5.0, 10.0, 20.0, 60.0, 600.0])
@pytest.mark.parametrize("still", STILL)
def test_a_pause_of_a_minute_in_which_nothing_moves_raises_nothing(still: str, steady: float, frames: str) -> None:  # fmt: skip
    run = trained(steady)
    paused = begun(run)
    run.play(60, {0: standing(STILL[still], frames)}, others=SPINS)
    assert opened(stepping(run, 60), paused) == []


@pytest.mark.parametrize("frames", [IN_EVALUATION, IN_CHECKPOINT], ids=("evaluation", "checkpoint"))
@pytest.mark.parametrize("steady", [10.0, 20.0, 600.0])
@pytest.mark.parametrize("still", STILL)
def test_what_hangs_there_is_named_within_90_s(still: str, steady: float, frames: str) -> None:
    run = trained(steady)
    hung = begun(run)
    late = opened(run.play(200, {0: standing(STILL[still], frames)}, others=SPINS), hung)
    assert len(late) == 1
    assert 60 < late[0] <= 85


@pytest.mark.parametrize("steady", [10.0, 20.0, 600.0])
@pytest.mark.parametrize("still", STILL)
def test_what_hangs_in_a_step_is_named_within_a_minute(still: str, steady: float) -> None:
    run = trained(steady)
    hung = begun(run)
    late = opened(run.play(200, {0: standing(STILL[still], IN_STEP)}, others=SPINS), hung)
    assert len(late) == 1
    assert late[0] <= 50


NO_PAUSES: dict[str, dict[int, Does]] = {
    "all wait for each other in an evaluation": dict.fromkeys(range(4), standing(WAITS, IN_EVALUATION)),
    "one evaluates, another sleeps in its step": {0: standing(SLEEPS, IN_EVALUATION), 2: standing(SLEEPS, IN_STEP)},
    "one sleeps in its step, the others wait in an evaluation": {0: standing(SLEEPS, IN_STEP)} | dict.fromkeys(range(1, 4), standing(WAITS, IN_EVALUATION)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_PAUSES)
def test_who_is_not_waited_for_excuses_nobody(name: str) -> None:
    run = trained(20)
    hung = begun(run)
    late = opened(run.play(200, NO_PAUSES[name]), hung)
    assert len(late) == 1
    assert late[0] <= 50


def test_ranks_that_wait_in_a_checkpoint_for_those_of_another_node_get_the_same_time() -> None:
    run = trained(20)
    run.elsewhere = True
    paused = begun(run)
    run.play(60, standing(WAITS, IN_CHECKPOINT))
    assert opened(stepping(run, 60), paused) == []


def test_a_timeout_from_the_config_is_kept_to() -> None:
    late = []
    for frames in (IN_STEP, IN_EVALUATION):
        run = trained(20)
        hung = begun(run)
        run.play(200, {0: standing(SLEEPS, frames)}, others=SPINS)
        late += opened(run, hung, timeout=15.0)
    assert late[0] == late[1] <= 35  # by looks 5 s apart


def test_a_run_without_steps_has_as_long_a_pause() -> None:
    """It hangs within 90 s in both places; a minute is enough in a step alone."""
    for frames, least in ((IN_STEP, 55.0), (IN_EVALUATION, 70.0)):
        run = Run().play(120, TRAINS)
        hung = begun(run)
        run.play(200, {0: standing(SLEEPS, frames)}, others=SPINS)
        late = [at - hung for at in watch(run.looks).opened]
        assert len(late) == 1
        assert least <= late[0] <= 90


@pytest.mark.parametrize(
    "frame",
    [
        "evaluate (transformers/trainer.py:4100)",
        "evaluation_loop (transformers/trainer.py:4200)",
        "run (lightning/pytorch/loops/evaluation_loop.py:145)",
        "validation_step (module.py:20)",
        "_run_validation (torchtune/recipe.py:700)",
        "_validate (verl/trainer/ppo/ray_trainer.py:600)",
        "validate (timm/train.py:1100)",
        "evaluate_and_print_results (megatron/training/training.py:2400)",
        "run_evaluation (train.py:9)",
        "__call__ (ultralytics/engine/validator.py:180)",
        "inference_on_dataset (detectron2/evaluation/evaluator.py:150)",
        "save_checkpoint (deepspeed/runtime/engine.py:3200)",
        "_maybe_save_checkpoint (train.py)",
        "save_pretrained (peft/peft_model.py:300)",
        "save (torch/serialization.py:900)",
        "async_save (torch/distributed/checkpoint/state_dict_saver.py:200)",
        "log_validation (diffusers/train_text_to_image.py:130)",
        "test (mnist/main.py:50)",
        "test_epoch (main.py:7)",
        "save_checkpoint_and_time (megatron/training/training.py:1700)",
    ],
)
def test_frames_of_a_pause(frame: str) -> None:
    assert stands_in_pause(f"wait (threading.py:355)\n{frame}\n<module> (train.py:80)")


@pytest.mark.parametrize(
    "frame",
    [
        "train_and_evaluate (main.py:10)",
        "fit (trainer.py:10)",
        "_fn (torch/_dynamo/eval_frame.py:700)",
        "compile_wrapper (torch/_dynamo/eval_frame.py:900)",
        "checkpoint (torch/utils/checkpoint.py:490)",
        "save_for_backward (x.py:1)",
        "save_on_cpu (x.py:1)",
        "saved_tensors (x.py:1)",
        "saves_often (x.py:1)",
        "validate_args (megatron/training/arguments.py:200)",
        "_validate_model_kwargs (transformers/generation/utils.py:1500)",
        "evaluator (x.py:1)",
        "log_metrics (x.py:1)",
        "test_loader_iter (x.py:1)",
        "testing_grounds (x.py:1)",
        "retrieval (rag.py:7)",
        "training_step (evaluate.py:31)",
        "slow_data_loader (train.py:7)",
        "train_epoch (main.py:7)\ntest (main.py:50)",
        "train (main.py:7)\ntest_model (test_model.py:50)",
        "",
    ],
)
def test_frames_of_no_pause(frame: str) -> None:
    assert not stands_in_pause(f"wait (threading.py:355)\n{frame}\n<module> (evaluation.py:80)")
