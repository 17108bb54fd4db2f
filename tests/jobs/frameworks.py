"""Small trainings with the frameworks that people use: `frameworks.py NAME`. Prints what came of it and what the hook told.

`weights` says what was learned, `loop` the steps that the loop itself counted, `told` each step that stood in the record,
`beats` how often it was told, `phases` all that were named, in order, repetitions left out.
"""

import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

ACCUMULATE = 4
OBSERVED: list[tuple[int, int, str]] = []
JOBS: dict[str, Callable[[], dict[str, Any]]] = {}


def job(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """One of the trainings, by its name."""
    JOBS[function.__name__] = function
    return function


class Points(Dataset[Any]):
    """Forty-eight points of a plane."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(4, generator=generator)
        return {"x": x, "labels": x.sum().reshape(1)}


class Line(torch.nn.Module):
    """What is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.second(torch.relu(self.first(x.to(self.first.weight.dtype))))
        return {"loss": (out.float() - labels.float()).square().mean(), "logits": out}


def weights(model: torch.nn.Module) -> float:
    assert all(one.numel() for one in model.parameters())
    return round(sum(float(one.detach().double().abs().sum()) for one in model.parameters()), 9)


def loader(**more: Any) -> DataLoader[Any]:
    return DataLoader(Points(), batch_size=2, **more)


def adam(model: torch.nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **more)


@contextmanager
def watched() -> Iterator[None]:
    """Note what the record says whenever it is written."""
    record = sys.modules.get("mldebug_training.hook.record")
    if record is None:
        yield
        return
    write = record.HookRecord.write

    def noted(self: Any) -> None:
        write(self)
        OBSERVED.append((self.step, self.beats, self.phase.decode()))

    record.HookRecord.write = noted
    yield


# --- PyTorch alone -------------------------------------------------------------------------------


@job
def plain() -> dict[str, Any]:
    """Gradient accumulation, workers that stay, an evaluation, a checkpoint; the optimizer is made anew half-way."""
    model, done = Line(), 0
    for epoch in range(2):
        optimizer = adam(model, **({"foreach": True}, {"fused": True})[epoch])
        for number, batch in enumerate(loader(num_workers=2, persistent_workers=True)):
            (model(**batch)["loss"] / ACCUMULATE).backward()
            if number % ACCUMULATE == ACCUMULATE - 1:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file))
    return {"loop": done, "weights": weights(model)}


@job
def scaler() -> dict[str, Any]:
    """Every third step overflows, so the scaler leaves the optimizer out."""
    model = Line()
    optimizer, scale, done = adam(model, foreach=False), torch.amp.GradScaler("cpu"), 0
    for number, batch in enumerate(loader()):
        loss = model(**batch)["loss"]
        scale.scale(loss * (float("inf") if number % 3 == 2 else 1.0)).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        done += 1
    return {"loop": done, "weights": weights(model)}


class Twice(torch.optim.AdamW):
    """An optimizer whose step calls that of its base class, which the same hook surrounds."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@job
def twice() -> dict[str, Any]:
    """One such optimizer beside a plain one, for the other half of the model."""
    model, done = Line(), 0
    optimizers = [
        torch.optim.AdamW(model.first.parameters(), lr=0.01),
        Twice(model.second.parameters(), lr=0.01),
    ]
    for batch in loader():
        model(**batch)["loss"].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        done += 1
    return {"loop": done, "weights": weights(model)}


@job
def compiled() -> dict[str, Any]:
    """Model and step compiled by a backend that needs no C++ compiler."""
    model, done = Line(), 0
    optimizer = adam(model)
    forward = torch.compile(model, backend="aot_eager")
    step = torch.compile(optimizer.step, backend="eager")
    for batch in loader():
        forward(**batch)["loss"].backward()
        step()
        optimizer.zero_grad()
        done += 1
    return {"loop": done, "weights": weights(model)}


@job
def background() -> dict[str, Any]:
    """A thread saves while the training goes on; the training's own phases stay what they are."""
    model, done = Line(), 0
    optimizer, stop = adam(model), threading.Event()

    def saves() -> None:
        while not stop.is_set():
            with tempfile.TemporaryFile() as file:
                torch.save({"a": torch.zeros(1000)}, file)

    optimizer.step()
    OBSERVED.clear()
    thread = threading.Thread(target=saves)
    thread.start()
    for batch in loader():
        model(**batch)["loss"].backward()
        optimizer.step()
        done += 1
    stop.set()
    thread.join()
    return {"loop": done + 1, "weights": weights(model)}


@job
def safetensors() -> dict[str, Any]:
    """Checkpoints that torch.save never sees."""
    from safetensors.torch import load_file, save_file

    model = Line()
    optimizer = adam(model)
    model(**next(iter(loader())))["loss"].backward()
    optimizer.step()
    with tempfile.NamedTemporaryFile() as file:
        save_file(model.state_dict(), file.name)
        model.load_state_dict(load_file(file.name))
    return {"loop": 1, "weights": weights(model)}


# --- frameworks ----------------------------------------------------------------------------------


@job
def accelerate() -> dict[str, Any]:
    """Accelerate: its loader, its optimizer, accumulation, its checkpoint."""
    from accelerate import Accelerator

    accelerator, done = Accelerator(gradient_accumulation_steps=ACCUMULATE, cpu=True), 0
    model = Line()
    model, optimizer, batches = accelerator.prepare(model, adam(model), loader())
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            done += accelerator.sync_gradients
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    accelerator.end_training()
    return {"loop": done, "weights": weights(model)}


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, max_position_embeddings=16, num_labels=2,
    )  # fmt: skip
    return BertForSequenceClassification(config)


class Words(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        ids = torch.randint(0, 32, (6,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.sum() % 2}


@job
def transformers() -> dict[str, Any]:
    """HF Trainer: accumulation, evaluation and a checkpoint every second step, then on from there in a second one."""
    import transformers as package

    package.logging.set_verbosity_error()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Any] = {
            "output_dir": folder, "per_device_train_batch_size": 2, "use_cpu": True, "seed": 1,
            "gradient_accumulation_steps": ACCUMULATE, "eval_strategy": "steps", "eval_steps": 2,
            "save_strategy": "steps", "save_steps": 2, "report_to": [], "disable_tqdm": True,
            "logging_strategy": "no",
        }  # fmt: skip
        model = bert()
        for steps in (4, 10):
            trainer = package.Trainer(
                model=model, args=package.TrainingArguments(max_steps=steps, **common),
                train_dataset=Words(), eval_dataset=Words(),
            )  # fmt: skip
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-4" if steps == 10 else None)
    return {"loop": trainer.state.global_step, "weights": weights(model)}


def lightning_trainer(folder: str, **more: Any) -> Any:
    import lightning

    common: dict[str, Any] = {
        "default_root_dir": folder, "accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": 2,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return lightning.Trainer(**common | more)


def lightning_module() -> Any:
    """Lightning's word for a model that knows how it is trained."""
    import lightning as package

    class Module(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = Line()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.line(**batch)["loss"]

        def validation_step(self, batch: Any, _: int) -> None:
            self.line(**batch)

        def configure_optimizers(self) -> Any:
            return adam(self.line)

    return Module()


@job
def lightning() -> dict[str, Any]:
    """Lightning: accumulation, an evaluation each epoch, a checkpoint, then on from there."""
    module = lightning_module()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning_trainer(folder, accumulate_grad_batches=ACCUMULATE)
        trainer.fit(module, loader(), loader())
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        again = lightning_trainer(folder, accumulate_grad_batches=ACCUMULATE)
        again.fit_loop.max_epochs = 3
        again.fit(module, loader(), loader(), ckpt_path=f"{folder}/last.ckpt", weights_only=False)
    return {"loop": again.global_step, "weights": weights(module)}


@job
def gan() -> dict[str, Any]:
    """Lightning, two optimizers by hand; its own global_step counts both."""
    import lightning as package

    class Gan(package.LightningModule):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList([Line(), Line()])

        def training_step(self, batch: Any, _: int) -> None:
            for part, optimizer in zip(self.parts, self.optimizers(), strict=True):
                self.manual_backward(part(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            return [adam(part) for part in self.parts]

    module = Gan()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning_trainer(folder, enable_checkpointing=False)
        trainer.fit(module, loader())
    return {"loop": trainer.global_step, "weights": weights(module)}


def deepspeed_engine(model: Line, stage: int) -> Any:
    """DeepSpeed's word for a model, its optimizer and their step: accumulation, two groups of parameters."""
    import deepspeed as package

    package.ops.__compatible_ops__["deepspeed_shm_comm"] = (
        False  # its own instead of gloo, compiled here
    )
    package.init_distributed(dist_backend="gloo")
    groups = [{"params": list(one.parameters())} for one in (model.first, model.second)]
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATE,
        "zero_optimization": {"stage": stage, "sub_group_size": 8},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": stage > 0},
    }
    engine, *_ = package.initialize(
        model=model, optimizer=torch.optim.AdamW(groups, lr=0.01), config=config
    )
    return engine


def deepspeed_whole(model: Line) -> Any:
    """While this holds, parameters that are sharded are whole: without it their tensors are empty."""
    import deepspeed as package

    return package.zero.GatheredParameters(list(model.parameters()))


def deepspeed(stage: int) -> dict[str, Any]:
    """DeepSpeed: accumulation, two groups of parameters, its checkpoint."""
    model = Line()
    engine = deepspeed_engine(model, stage)
    with tempfile.TemporaryDirectory() as folder:
        for batch in loader():
            engine.backward(engine(**batch)["loss"])
            engine.step()
        engine.save_checkpoint(folder)
        engine.load_checkpoint(folder)
        for batch in loader():
            engine.backward(engine(**batch)["loss"])
            engine.step()
    with deepspeed_whole(model):
        learned = weights(model)
    torch.distributed.destroy_process_group()
    return {"loop": engine.global_steps, "weights": learned}


for _stage in range(4):
    JOBS[f"deepspeed{_stage}"] = lambda stage=_stage: deepspeed(stage)


@job
def megatron() -> dict[str, Any]:
    """Megatron's own mixed-precision optimizer: no optimizer of PyTorch, calls one, and skips it after an overflow."""
    from megatron.core.optimizer import optimizer as parts

    model, done = Line().bfloat16(), 0

    class Mixed(parts.MixedPrecisionOptimizer):  # its parts that need a GPU left out
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.optimizer, self.overflow, self.is_stub_optimizer = inner, False, False
            self.config = SimpleNamespace(
                timers=None, clip_grad=0.0, log_num_zeros_in_grad=False, barrier_with_L1_time=False
            )

        def prepare_grads(self) -> bool:
            return self.overflow

        def step_with_ready_grads(self) -> bool:
            self.optimizer.step()
            return True

        def _copy(self, *_: Any) -> None: ...

        zero_grad = reload_model_params = state_dict = load_state_dict = sharded_state_dict = _copy
        _copy_model_grads_to_main_grads = _copy_main_params_to_model_params = _copy
        _copy_model_params_to_main_params = _collect_main_grad_data_for_unscaling = _copy
        get_grad_norm = count_zeros = _copy

    mixed = Mixed(adam(model))
    for number, batch in enumerate(loader()):
        model(**batch)["loss"].backward()
        mixed.overflow = number % 3 == 2
        mixed.step()
        mixed.optimizer.zero_grad()
        done += 1
    return {"loop": done, "weights": weights(model)}


def outcome(train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What came of a training, and what the hook told meanwhile."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with watched():
        result = train()
    results, phases = [], []
    for step, _, phase in OBSERVED:
        if not results or results[-1] != step:
            results.append(step)
        if phase and (not phases or phases[-1] != phase):
            phases.append(phase)
    beats = OBSERVED[-1][1] if OBSERVED else 0
    left = OBSERVED[-1][2] if OBSERVED else ""
    return {**result, "told": results, "beats": beats, "phases": phases, "left": left}


if __name__ == "__main__":
    print(json.dumps(outcome(JOBS[sys.argv[1]])))
