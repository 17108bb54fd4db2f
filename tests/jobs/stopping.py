"""A small data-parallel job that stops together: its loop asks for switches, and every rank tells what it was answered.

Each rank appends `STEP ACTION REASON` to EVENTS/actions.RANK, and at its end a digest of its weights to EVENTS/weights.RANK.
"""

import argparse
import contextlib
import hashlib
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from events import put
from leaving import leave

import mldebug_training


def main() -> None:
    options = arguments()
    rank = int(os.environ["RANK"])
    announce(options, "started", rank, str(os.getpid()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.collectives))
    switches = None if options.without else make(options, rank)
    if switches and (action := switches.at_start()):
        tell(options, rank, f"start {action} {switches.reason}")
        return
    train(options, rank, switches)
    if switches:
        switches.close()
    dist.barrier()
    leave()


def make(options: argparse.Namespace, rank: int) -> mldebug_training.Switches:
    folder = options.folder and options.folder.format(rank=rank)
    limit = mldebug_training.TimeLimit(options.duration, save=0.5) if options.duration else None
    return mldebug_training.Switches(
        folder,
        limit=limit,
        timeout=options.timeout,
        every=options.every,
        reason=lambda: reason(options, rank),
    )


def reason(options: argparse.Namespace, rank: int) -> str | None:
    file = options.events / f"reason.{rank}"
    return file.read_text() if file.exists() else None


def train(
    options: argparse.Namespace, rank: int, switches: mldebug_training.Switches | None
) -> None:
    torch.manual_seed(7)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * 1000 + rank))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        time.sleep(options.pause)
        announce(options, "step", rank, str(step))
        if switches is None or (rank in options.seldom and step % 3):
            continue
        if step == options.stop_at:
            announce(options, "reason", rank, "enough")
        if rank == 0 and step == options.stop_at + 1:
            time.sleep(options.alone)
        if rank in options.miss and step == options.stop_at + 1:
            continue
        action = switches.poll()
        if action:
            tell(options, rank, f"{step} {action} {switches.reason}")
            with switches.saving():
                save(options, rank, model)
        if action == "kill":
            break
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
    announce(options, "weights", rank, f"{step} {digest.hexdigest()}")


def save(options: argparse.Namespace, rank: int, model: torch.nn.Module) -> None:
    time.sleep(options.save)
    torch.save(model.state_dict(), options.events / f"saved.{rank}")


def announce(options: argparse.Namespace, event: str, rank: int, text: str) -> None:
    """Write EVENTS/EVENT.RANK at once and whole."""
    put(options.events / f"{event}.{rank}", text)


def tell(options: argparse.Namespace, rank: int, line: str) -> None:
    with (options.events / f"actions.{rank}").open("a") as file:
        file.write(f"{line}\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--folder", default="", help="{rank} in it: a folder for each")
    parser.add_argument("--duration", default="")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--save", type=float, default=0.0)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--every", type=int, default=None)
    parser.add_argument("--collectives", type=float, default=1800.0, help="seconds that they live")
    parser.add_argument("--stop-at", type=int, default=-2, help="the step at which all ask to stop")
    parser.add_argument(
        "--alone", type=float, default=0.0, help="seconds of rank 0 before the next"
    )
    parser.add_argument(
        "--miss", type=int, nargs="*", default=[], help="ranks that miss the next poll"
    )
    parser.add_argument("--without", action="store_true", help="no switches at all")
    parser.add_argument(
        "--seldom", type=int, nargs="*", default=[], help="ranks that ask less often"
    )
    return parser.parse_args()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
