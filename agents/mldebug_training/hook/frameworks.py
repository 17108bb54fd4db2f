"""Reads from training frameworks their own step number, which goes on after a resume, and phases such as evaluation.

Each is read by a function of its own that does nothing else. If it does not exist in a version, it is left out, and steps of the
optimizers count as usual.
"""

from __future__ import annotations

from mldebug_training.hook.phases import wrap_phases
from mldebug_training.hook.steps import counts_after, counts_if_left_out, counts_itself

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")  # one package, two names


def join(module: ModuleType) -> None:
    """Instrument a framework's module that was just imported and that the hook waits for."""
    name = module.__name__
    for package in LIGHTNING:
        name = name.removeprefix(package)
    if name in JOIN:
        JOIN[name](module)


def _grad_scaler(module: Any) -> None:
    _replace(module.GradScaler, "step", counts_if_left_out)


def _deepspeed(module: Any) -> None:
    engine = module.DeepSpeedEngine
    _replace(engine, "_take_model_step", counts_itself)
    wrap_phases(engine, save_checkpoint="checkpoint_save", load_checkpoint="checkpoint_load")


def _megatron(module: Any) -> None:
    for name in ("MixedPrecisionOptimizer", "ChainedOptimizer"):
        _replace(getattr(module, name, None), "step", counts_if_left_out)


def _trainer_callback(module: Any) -> None:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return counts_after(function, lambda handler, args, state, *_, **__: state.global_step)

    _replace(module.CallbackHandler, "on_step_end", wrap)


def _trainer(module: Any) -> None:
    wrap_phases(
        module.Trainer,
        evaluation_loop="evaluate",
        _save_checkpoint="checkpoint_save",
        _load_from_checkpoint="checkpoint_load",
    )


def _lightning_training(module: Any) -> None:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return counts_after(function, lambda loop, *_, **__: loop.global_step)

    _replace(module._TrainingEpochLoop, "advance", wrap)


def _lightning_evaluation(module: Any) -> None:
    wrap_phases(module._EvaluationLoop, run="evaluate")


def _lightning_trainer(module: Any) -> None:
    wrap_phases(module.Trainer, save_checkpoint="checkpoint_save")


def _replace(owner: Any, name: str, wrap: Wrap) -> None:
    function = getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, wrap(function))


JOIN = {
    "torch.amp.grad_scaler": _grad_scaler,
    "deepspeed.runtime.engine": _deepspeed,
    "megatron.core.optimizer.optimizer": _megatron,
    "transformers.trainer_callback": _trainer_callback,
    "transformers.trainer": _trainer,
    "loops.training_epoch_loop": _lightning_training,
    "loops.evaluation_loop": _lightning_evaluation,
    "trainer.trainer": _lightning_trainer,
}
