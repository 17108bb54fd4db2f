"""Small trainings of several ranks on gloo: `several.py NAME FOLDER` under torchrun.

Each rank writes what came of it and what its hook told to FOLDER/told.RANK, as `frameworks.py` prints it. `weights` is a
digest of what this rank holds.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from frameworks import (
    ACCUMULATE,
    Line,
    Points,
    Words,
    adam,
    bert,
    deepspeed_engine,
    deepspeed_whole,
    lightning_module,
    lightning_trainer,
    loader,
    outcome,
)
from torch.utils.data import DistributedSampler

EPOCHS = 2
JOBS: dict[str, Callable[[Path], dict[str, Any]]] = {}
PATIENCE = 120.0  # seconds


def job(function: Callable[[Path], dict[str, Any]]) -> Callable[[Path], dict[str, Any]]:
    """One of the trainings, by its name; it may write into a folder that all ranks see."""
    JOBS[function.__name__] = function
    return function


def digest(model: torch.nn.Module) -> str:
    """Of all bits of the parameters, or of the part of them that this rank holds."""
    found, size = hashlib.sha256(), 0
    for one in model.parameters():
        local = one.to_local() if hasattr(one, "to_local") else one
        size += local.numel()
        found.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    assert size, "it has nothing of the model"
    return found.hexdigest()


def batches() -> Any:
    """This rank's half of the points, twelve batches."""
    return loader(sampler=DistributedSampler(Points(), shuffle=False))


def trained(model: Any, optimizer: torch.optim.Optimizer) -> int:
    """Train it with gradient accumulation; returns how many steps there were."""
    done = 0
    for _ in range(EPOCHS):
        for number, batch in enumerate(batches()):
            (model(**batch)["loss"] / ACCUMULATE).backward()
            if number % ACCUMULATE == ACCUMULATE - 1:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
    return done


# --- PyTorch alone -------------------------------------------------------------------------------


@job
def zero(folder: Path) -> dict[str, Any]:
    """DDP with an optimizer whose state lies on one rank each; each saves its own."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Line())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    done = trained(model, optimizer)
    optimizer.consolidate_state_dict(to=0)
    file = folder / f"state.{dist.get_rank()}"
    torch.save([model.state_dict(), optimizer.optim.state_dict()], file)
    model.load_state_dict(torch.load(file)[0])
    return {"loop": done, "weights": digest(model)}


@job
def fsdp2(folder: Path) -> dict[str, Any]:
    """Sharded by `fully_shard`, saved and loaded by torch.distributed.checkpoint."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = Line()
    for part in (model.first, model.second, model):
        fully_shard(part)
    optimizer = adam(model)
    done = trained(model, optimizer)
    state = get_model_state_dict(model)
    checkpoint.save(state, checkpoint_id=str(folder / "state"))
    checkpoint.load(state, checkpoint_id=str(folder / "state"))
    return {"loop": done, "weights": digest(model)}


# --- frameworks ----------------------------------------------------------------------------------


@job
def accelerate(folder: Path) -> dict[str, Any]:
    """Accelerate: DDP, its own split of the data, accumulation, its checkpoint."""
    from accelerate import Accelerator

    accelerator, done = Accelerator(gradient_accumulation_steps=ACCUMULATE, cpu=True), 0
    model = Line()
    model, optimizer, parts = accelerator.prepare(model, adam(model), loader())
    for _ in range(EPOCHS):
        for batch in parts:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
                done += accelerator.sync_gradients
    accelerator.save_state(str(folder / "state"))
    accelerator.wait_for_everyone()
    accelerator.load_state(str(folder / "state"))
    return {"loop": done, "weights": digest(model)}


@job
def transformers(folder: Path) -> dict[str, Any]:
    """HF Trainer: DDP, accumulation, evaluation and a checkpoint every second step, then on from there."""
    import transformers as package

    package.logging.set_verbosity_error()
    common: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 2, "use_cpu": True, "seed": 1,
        "gradient_accumulation_steps": ACCUMULATE, "eval_strategy": "steps", "eval_steps": 2,
        "save_strategy": "steps", "save_steps": 2, "report_to": [], "disable_tqdm": True,
        "logging_strategy": "no", "ddp_backend": "gloo",
    }  # fmt: skip
    model = bert()
    for steps in (4, 8):
        trainer = package.Trainer(
            model=model, args=package.TrainingArguments(max_steps=steps, **common),
            train_dataset=Words(), eval_dataset=Words(),
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4") if steps == 8 else None)
    return {"loop": trainer.state.global_step, "weights": digest(model)}


@job
def lightning(folder: Path) -> dict[str, Any]:
    """Lightning: DDP, accumulation, an evaluation each epoch, a checkpoint, then on from there."""
    module = lightning_module()
    several: dict[str, Any] = {
        "devices": 2, "strategy": "ddp", "accumulate_grad_batches": ACCUMULATE,
    }  # fmt: skip
    trainer = lightning_trainer(str(folder), **several)
    trainer.fit(module, loader(), loader())
    trainer.save_checkpoint(str(folder / "last.ckpt"))
    again = lightning_trainer(str(folder), **several)
    again.fit_loop.max_epochs = 3
    last = str(folder / "last.ckpt")
    again.fit(module, loader(), loader(), ckpt_path=last, weights_only=False)
    return {"loop": again.global_step, "weights": digest(module)}


def deepspeed(stage: int, folder: Path) -> dict[str, Any]:
    """DeepSpeed: what is sharded goes with the stage; accumulation, two groups of parameters, its checkpoint."""
    model = Line()
    engine = deepspeed_engine(model, stage)
    for turn in range(EPOCHS):
        for batch in batches():
            engine.backward(engine(**batch)["loss"])
            engine.step()
        if turn == 0:
            engine.save_checkpoint(str(folder))
            engine.load_checkpoint(str(folder))
    with deepspeed_whole(model):
        return {"loop": engine.global_steps, "weights": digest(model)}


for _stage in range(4):
    JOBS[f"deepspeed{_stage}"] = lambda folder, stage=_stage: deepspeed(stage, folder)


def main() -> None:
    """Train, tell, and end together."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    rank, size = (int(os.environ[word]) for word in ("RANK", "WORLD_SIZE"))
    result = outcome(lambda: JOBS[name](folder))
    fresh = folder / f"new.{rank}"
    fresh.write_text(json.dumps({**result, "pid": os.getpid()}))
    fresh.rename(folder / f"told.{rank}")
    until = time.monotonic() + PATIENCE
    while not all((folder / f"told.{one}").exists() for one in range(size)):
        assert time.monotonic() < until, "another rank has not come so far"
        time.sleep(0.02)
    sys.stdout.flush()
    os._exit(0)  # PyTorch 2.13 can deadlock on the GIL where a DDP model outlives its gloo group


if __name__ == "__main__":
    main()
