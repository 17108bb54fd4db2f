"""A training that tells no step anywhere, by hand, with Lightning or with transformers' Trainer, and may get stuck; started by torchrun.

EVENTS/strike.RANK comes right before the fault, EVENTS/trained.RANK counts the steps in bytes. Nothing is printed but what a framework
prints by itself. `--cpu` does all of it small and on gloo.

| fault | rank 1 | the others |
|---|---|---|
| both | waits in a collective of another group | wait in that of the first group |
| blocked | sleeps | wait for it in a collective |
| worker | waits for its DataLoader, whose worker sleeps | wait for it in a collective |
| barrier | waits in the barrier of another group, before any step | wait in that of the first group |
| healthy | trains | train |
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

ON_CPU = "--cpu" in sys.argv
DEVICE = "cpu" if ON_CPU else "cuda"
WIDTH, LENGTH, BATCH = (32, 8, 2) if ON_CPU else (2048, 512, 16)
ITEMS = 1_000_000
AGES = 100_000
FAULTS = ("both", "blocked", "worker", "barrier", "healthy")
STRUCK = 1


class Trial:
    """What this rank shall do, and how far it is."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.events: Path = options.events
        self.fault: str = options.fault
        self.after: float = options.after
        self.rank = int(os.environ["RANK"])
        self.began: float | None = None  # of the first step, or of a worker's first item
        self.struck = False
        self.groups: list[dist.ProcessGroup] = []

    def join(self) -> None:
        """Two groups of all ranks, both warm: a collective in one of them waits on the device, not for a connection."""
        self.groups = [dist.new_group(), dist.new_group()]
        for group in self.groups:
            dist.all_reduce(torch.ones(1, device=DEVICE), group=group)

    @property
    def late(self) -> bool:
        """Has it trained for long enough?"""
        now = time.monotonic()
        self.began = now if self.began is None else self.began
        return now - self.began >= self.after

    @property
    def due(self) -> bool:
        """Is this rank's share of the fault due now? Then it is announced, once."""
        if self.struck or not self.late or (self.rank != STRUCK and self.fault != "both"):
            return False
        self.struck = True
        (self.events / f"strike.{self.rank}").touch()
        return True

    def step(self) -> None:
        """Called in each step of the training, between forward and backward."""
        with (self.events / f"trained.{self.rank}").open("ab") as file:
            file.write(b".")
        if self.fault == "blocked" and self.due:
            time.sleep(AGES)
        if self.fault == "both" and self._together():
            self.part()

    def part(self) -> None:
        """One collective, and each side another group."""
        value = torch.ones(1 << 16, device=DEVICE)
        dist.all_reduce(value, group=self.groups[self.rank == STRUCK])
        value.sum().item()

    def meet(self) -> None:
        """A barrier before the first step, and each side another group."""
        (self.events / f"strike.{self.rank}").touch()
        dist.barrier(group=self.groups[self.rank == STRUCK])
        torch.ones(1, device=DEVICE).item()

    def _together(self) -> bool:
        """Do all ranks agree that it is time? Otherwise one would part a step before the others."""
        ready = torch.tensor([float(self.late)], device=DEVICE)
        dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=self.groups[0])
        return bool(ready.item()) and self.due


class Numbers(Dataset[Any]):
    """Items without a content; the worker of one rank stops to bring any."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.trial.fault == "worker" and self.trial.due:
            time.sleep(AGES)
        return {"x": torch.zeros(1)}


class Model(torch.nn.Module):
    """A transformer that makes up its own input, so that feeding it costs nothing."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True)  # fmt: skip
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.trial = trial

    def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.trial.step()
        made = torch.randn(BATCH, LENGTH, WIDTH, device=x.device, dtype=x.dtype)
        return {"loss": self.encoder(made).square().mean()}


def by_hand(trial: Trial) -> None:
    """DistributedDataParallel and a loop."""
    model = torch.nn.parallel.DistributedDataParallel(Model(trial).to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for batch in DataLoader(Numbers(trial), batch_size=BATCH, num_workers=1):
        loss = model(batch["x"].to(DEVICE))["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def by_lightning(trial: Trial) -> None:
    """Without a bar and without a logger: as with a Rich bar that is no terminal's, no step stands in its output."""
    import lightning

    class Trained(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(trial)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            self.log("loss", loss, prog_bar=True, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-5)

    kind = "cpu" if ON_CPU else "gpu"
    ranks = int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator=kind, devices=ranks, strategy="ddp", max_epochs=1, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Trained(), DataLoader(Numbers(trial), batch_size=BATCH, num_workers=1))


def by_trainer(trial: Trial) -> None:
    """Without a bar, and without a log of losses."""
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(trial.events / "out"), max_steps=ITEMS, per_device_train_batch_size=BATCH, disable_tqdm=True,
        logging_strategy="no", save_strategy="no", report_to=[], dataloader_num_workers=1, use_cpu=ON_CPU,
        remove_unused_columns=False,
    )  # fmt: skip
    transformers.Trainer(Model(trial), arguments, train_dataset=Numbers(trial)).train()


LOOPS = {"hand": by_hand, "lightning": by_lightning, "trainer": by_trainer}


def main() -> None:
    """Join the job, and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--loop", choices=LOOPS, default="hand")
    parser.add_argument("--after", type=float, default=25.0, help="seconds until the fault comes")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if not options.cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo" if options.cpu else "nccl")
    trial = Trial(options)
    trial.join()
    if options.fault == "barrier":
        trial.meet()
    LOOPS[options.loop](trial)


if __name__ == "__main__":
    main()
