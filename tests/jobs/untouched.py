"""Trainings as people write them with Lightning, the HF Trainer and FSDP2, which know nothing of whoever watches; started by torchrun.

    torchrun --nproc-per-node 2 untouched.py lightning --fault sleep --after 30 --events FOLDER [--cpu] [--pause SECONDS]

After `--after` seconds of training rank `--rank` is struck: a DataLoader worker that gets no data, a sleep, a read that is
never answered, a collective of its own, an upload that is never answered, or a debugger's prompt. EVENTS/strike.RANK is made right before. `healthy` trains, evaluates and saves by turns, compiled. `--pause` sleeps in each step, so that several jobs fit a small machine.
What a framework prints, draws and writes is what it does by itself.
"""

import argparse
import json
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

AGES = 100_000
ROUND = 400  # steps between two evaluations and checkpoints of a healthy job
RANK = int(os.environ.get("RANK", "0"))


class Trouble:
    """What strikes one rank, and when. Each process has its own, a DataLoader worker too."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began: float | None = None

    def due(self) -> bool:
        """Whether it strikes now: its time counts from the first call in this process."""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        return self.options.rank == RANK and now - self.began > self.options.after

    def announce(self) -> None:
        (self.options.events / f"strike.{RANK}").touch()

    def in_model(self) -> None:
        """Called in each forward pass of training."""
        if self.options.pause:
            time.sleep(self.options.pause)
        act = ACTS.get(self.options.fault)
        if act is not None and self.due():
            self.announce()
            act(self)

    def in_data(self) -> None:
        """Called for each sample, in a worker."""
        if self.options.fault == "worker" and self.due():
            self.announce()
            read_shard()


def read_shard() -> None:
    """A shard that never arrives."""
    time.sleep(AGES)


def sleep(trouble: Trouble) -> None:
    """The rank never arrives."""
    time.sleep(AGES)


def blocked(trouble: Trouble) -> None:
    """A file that is never answered."""
    fifo = trouble.options.events / f"answer.{os.getpid()}"
    os.mkfifo(fifo)
    fifo.read_bytes()


def both(trouble: Trouble) -> None:
    """A call that nobody else answers: this rank waits for the others, and they for it. Gloo would end at a collective of another size."""
    value = torch.ones(1 << 16, device=trouble.options.device)
    if trouble.options.cpu:
        dist.recv(value, src=1 - RANK)
    dist.all_reduce(value)
    dist.all_reduce(value)
    print(float(value[0]))


def upload(trouble: Trouble) -> None:
    """A server that takes the request and never answers it."""
    server = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{server.getsockname()[1]}/checkpoints"
    urllib.request.urlopen(address, data=b"weights")


def debugger(trouble: Trouble) -> None:
    """A breakpoint that somebody forgot: torchrun's ranks read their launcher's input, into which nobody types."""
    breakpoint()  # noqa: T100 - the fault


ACTS = {"sleep": sleep, "blocked": blocked, "both": both, "upload": upload, "debugger": debugger}


class Samples(Dataset[Any]):
    """Points of a plane, as many as anybody wants."""

    def __init__(self, trouble: Trouble | None, width: int, size: int = 1_000_000) -> None:
        self.trouble, self.width, self.size = trouble, width, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if self.trouble is not None:
            self.trouble.in_data()
        x = torch.full((self.width,), float(index % 97) / 97)
        return {"x": x, "labels": x.sum().reshape(1)}


class Net(torch.nn.Module):
    """What is trained."""

    def __init__(self, trouble: Trouble, width: int) -> None:
        super().__init__()
        layers = [torch.nn.Linear(width, width) for _ in range(4)]
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))
        self.trouble = trouble

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            strike(self.trouble)
        out = self.layers(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


@torch.compiler.disable
def strike(trouble: Trouble) -> None:
    """No part of what is compiled."""
    trouble.in_model()


def data_of(trouble: Trouble) -> tuple[Samples, Samples]:
    """What is trained on, and what is evaluated on."""
    width = trouble.options.width
    return Samples(trouble, width), Samples(None, width, 64)


# --- Lightning -------------------------------------------------------------------------------------


def lightning(trouble: Trouble, *, bar: str = "", charts: bool = True, table: bool = False) -> None:
    """Its Trainer with the bar that it draws by itself (Rich where that is installed), or tqdm's; without `charts` no step stands anywhere.

    `table`: its steps stand in metrics.csv, in place of the event file that it writes where TensorBoard is installed.
    """
    import lightning as package
    from lightning.pytorch.callbacks import TQDMProgressBar
    from lightning.pytorch.loggers import CSVLogger

    options = trouble.options

    class Module(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            net = Net(trouble, options.width)
            self.net = torch.compile(net, backend=options.backend) if options.compiles else net

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.net(**batch)["loss"]
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", self.net(**batch)["loss"], sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    train, evaluation = data_of(trouble)
    trainer = package.Trainer(
        accelerator="cpu" if options.cpu else "gpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp", max_steps=AGES * AGES, val_check_interval=ROUND, callbacks=[TQDMProgressBar()] if bar == "tqdm" else [],
        logger=CSVLogger(".") if table else charts,
    )  # fmt: skip
    trainer.fit(
        Module(),
        DataLoader(train, batch_size=16, num_workers=1),
        DataLoader(evaluation, batch_size=16),
    )


# --- HF Trainer ------------------------------------------------------------------------------------


def trainer(trouble: Trouble, *, report_to: str = "") -> None:
    """As its documentation shows it; with `report_to` it says everything there, and nothing on the console."""
    import transformers as package

    options = trouble.options
    train, evaluation = data_of(trouble)
    arguments = package.TrainingArguments(
        output_dir=options.output, per_device_train_batch_size=16, max_steps=1_000_000, use_cpu=options.cpu,
        ddp_backend="gloo" if options.cpu else "nccl", logging_steps=20, eval_strategy="steps", eval_steps=ROUND,
        save_steps=ROUND, save_total_limit=2, dataloader_num_workers=1, report_to=[report_to] if report_to else [],
        disable_tqdm=bool(report_to), torch_compile=options.compiles, torch_compile_backend=options.backend if options.compiles else None,
    )  # fmt: skip
    made = package.Trainer(
        model=Net(trouble, options.width),
        args=arguments,
        train_dataset=train,
        eval_dataset=evaluation,
    )
    if report_to:
        made.remove_callback(package.trainer_callback.PrinterCallback)
    made.train()


# --- PyTorch alone ---------------------------------------------------------------------------------


def loop(trouble: Trouble, *, tells: str = "", sharded: bool = False) -> None:
    """A loop of one's own: FSDP2 that tells its steps in the `log`, DDP in a JSONL file, in lines without any step (`chat`), or nowhere."""
    options = trouble.options
    if tells == "chat":
        threading.Thread(target=monitor, daemon=True).start()
    dist.init_process_group("gloo" if options.cpu else "nccl")
    model: Any = Net(trouble, options.width).to(options.device)
    if sharded:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if options.compiles:
        model = torch.compile(model, backend=options.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train, evaluation = data_of(trouble)
    for step, batch in enumerate(DataLoader(train, batch_size=16, num_workers=1)):
        loss = model(**{name: value.to(options.device) for name, value in batch.items()})["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0 and step % 20 == 0:
            tell(tells, step, loss)
        if step % ROUND == ROUND - 1:
            evaluate(model, evaluation, options)
            save(model, options)


def tell(where: str, step: int, loss: torch.Tensor) -> None:
    """One record of the training; a JSONL file is opened for each, as LLaMA-Factory does."""
    if where == "log":
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    elif where == "jsonl":
        with open("trainer_log.jsonl", "a") as file:
            file.write(json.dumps({"current_steps": step, "loss": round(loss.item(), 4)}) + "\n")
    elif where == "chat":
        print("still going, nothing to worry about", flush=True)


def monitor() -> None:
    """What watches memory beside the training, and says so while that hangs, too."""
    while True:
        print(f"memory {os.sysconf('SC_AVPHYS_PAGES') >> 18} GB free", flush=True)
        time.sleep(3)


def evaluate(model: Any, evaluation: Samples, options: argparse.Namespace) -> None:
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(evaluation, batch_size=16):
            model(**{name: value.to(options.device) for name, value in batch.items()})
    model.train()


def save(model: Any, options: argparse.Namespace) -> None:
    from torch.distributed.checkpoint import save as save_checkpoint

    save_checkpoint(model.state_dict(), checkpoint_id=f"{options.output}/checkpoint")


KINDS: dict[str, Callable[[Trouble], None]] = {
    "lightning": lightning,
    "lightning-bare": lambda it: lightning(it, charts=False),
    "lightning-csv": lambda it: lightning(it, table=True),
    "lightning-tqdm": lambda it: lightning(it, bar="tqdm"),
    "trainer": trainer,
    "trainer-tensorboard": lambda it: trainer(it, report_to="tensorboard"),
    "trainer-wandb": lambda it: trainer(it, report_to="wandb"),
    "fsdp2": lambda it: loop(it, tells="log", sharded=True),
    "jsonl": lambda it: loop(it, tells="jsonl"),
    "chatty": lambda it: loop(it, tells="chat"),
    "silent": loop,
}
FAULTS = ("worker", *ACTS, "healthy")


def main() -> None:
    """Train until the fault strikes, or for ever."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--fault", choices=FAULTS, default="healthy")
    parser.add_argument("--after", type=float, default=30.0)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    os.chdir(options.events)  # as people do: what a framework writes lies where they stand
    options.output = "output"
    options.width = 64 if options.cpu else 1024
    options.compiles = options.fault == "healthy"
    options.backend = "aot_eager" if options.cpu else "inductor"
    local = int(os.environ.get("LOCAL_RANK", "0"))
    options.device = "cpu" if options.cpu else f"cuda:{local}"
    if options.cpu:
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(local)
    KINDS[options.kind](Trouble(options))


if __name__ == "__main__":
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    main()
