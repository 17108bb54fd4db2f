"""The one-second recordings of two H200 ranks (tests/fixtures/h200/signals) as looks of the watch.

The log has no times but those of its phases; a record is 94 bytes of rank 0, so the seconds in which rank 0 wrote that
much are the moments of the records. What the recorder saw of the stacks goes through the real classification.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mldebug.core.model import OpenFile, RankCapture, RankIdentity
from mldebug.diagnosis.classify.rank_class import classify
from mldebug.stall.device_levels import DeviceLevels
from mldebug.stall.signals import Progress, ProgressKind, RankLook, RunLook
from shared.diagnosis.builders import process

FOLDER = Path(__file__).parents[2] / "fixtures" / "h200" / "signals"
RECORD = 94  # bytes of one line of the training log
TICK = 0.01
SYNC = {
    "train_step (rec_train.py:24)": "return loss.item()",
    "evaluate (rec_train.py:35)": "x.item()",
}


def phases(name: str) -> list[tuple[float, str]]:
    """(time, name) of every phase in the recording's log."""
    text = (FOLDER / f"{name}.log").read_text()
    return [
        (float(at), phase) for at, phase in re.findall(r"^PHASE (\S+) (.+)$", text, re.MULTILINE)
    ]


def looks(
    name: str, *, log: bool = True, gpu: bool = True, checkpoint: bool = True
) -> list[RunLook]:
    """Every second of a recording, from the first that shows a rank; parts of it can be left out."""
    player = _Player(name, log=log, gpu=gpu, checkpoint=checkpoint)
    return list(player.play())


def stretch(recording: list[RunLook], seconds: float, interval: float = 1.0) -> list[RunLook]:
    """Let the last second of a recording last longer: counters that moved in it go on moving."""
    before, last = recording[-2:]
    longer = list(recording)
    for index in range(1, int(seconds / interval) + 1):
        ranks = tuple(
            _later(old, new, index) for old, new in zip(before.ranks, last.ranks, strict=True)
        )
        longer.append(_replace(last, at=last.at + index * interval, ranks=ranks))
    return longer


def _later(old: RankLook, new: RankLook, index: int) -> RankLook:
    return _replace(
        new,
        switches=new.switches + index * (new.switches - old.switches),
        io_bytes=new.io_bytes + index * (new.io_bytes - old.io_bytes),
        written_bytes=new.written_bytes + index * (new.written_bytes - old.written_bytes),
    )


def _replace(struct: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(struct, **changes)


class _Player:
    def __init__(self, name: str, *, log: bool, gpu: bool, checkpoint: bool) -> None:
        text = (FOLDER / f"{name}.jsonl").read_text()
        self.rows = [json.loads(line) for line in text.splitlines()]
        self.log, self.gpu, self.checkpoint = log, gpu, checkpoint
        self.levels: dict[int, DeviceLevels] = {}
        self.begins = phases(name)[0][0]
        self.records = 0
        self.record_at = 0.0
        self.stacks: dict[str, list[str]] = {}

    def play(self) -> Iterator[RunLook]:
        before: dict[str, Any] | None = None
        for row in self.rows:
            if before is not None and before["ranks"]:
                self._write(before, row)
                yield self._look(before, row)
            before = row

    def _write(self, before: dict[str, Any], row: dict[str, Any]) -> None:
        old, new = (item["ranks"].get("0", {}).get("wchar", 0) for item in (before, row))
        if row["t"] > self.begins and RECORD <= new - old < 1000:
            self.records += (new - old) // RECORD
            self.record_at = row["t"]

    def _look(self, before: dict[str, Any], row: dict[str, Any]) -> RunLook:
        alive = {rank: now for rank, now in row["ranks"].items() if now["state"] != "gone"}
        return RunLook(
            at=row["t"],
            run="h200",
            ranks=tuple(self._rank(rank, before, row) for rank in sorted(alive)),
            exited=tuple(int(rank) for rank in row["ranks"] if rank not in alive),
            progress=tuple(self._progress()),
            started=self.log and self.records > 0,
        )

    def _progress(self) -> Iterator[Progress]:
        if self.log and self.records:
            yield Progress(kind=ProgressKind.RECORD, value=self.records * 10, at=self.record_at)

    def _rank(self, rank: str, before: dict[str, Any], row: dict[str, Any]) -> RankLook:
        old, new = before["ranks"].get(rank, {}), row["ranks"][rank]
        span = row["t"] - before["t"]
        cpu = sum(new[key] - old.get(key, new[key]) for key in ("main_utime", "main_stime"))
        look = RankLook(
            rank=int(rank),
            cpu_ratio=cpu * TICK / span,
            process_cpu_ratio=cpu * TICK / span,
            switches=new["main_vol"],
            io_bytes=new["rchar"] + new["wchar"],
            written_bytes=new["wchar"] if self.checkpoint else 0,
            state=new["state"],
            wchan=new["wchan"],
            device_progress=self._device(int(rank), before, row, span) if self.gpu else None,
        )
        return _replace(look, **_with_stack(new)) if "stack" in new else look

    def _device(
        self, index: int, before: dict[str, Any], row: dict[str, Any], span: float
    ) -> bool | None:
        old, new = before["gpus"][index], row["gpus"][index]
        levels = self.levels.setdefault(index, DeviceLevels())
        return levels.look((new["energy_mj"] - old["energy_mj"]) / span, new["mem_util"])


def _with_stack(now: dict[str, Any]) -> dict[str, Any]:
    """What a stack sample adds to a look."""
    frames = now["stack"].get("frames", ())
    if not frames:
        return {}
    wchan = "" if now["wchan"] == "0" else now["wchan"]
    result = process(
        *frames,
        state=now["state"],
        wchan=wchan,
        files=(OpenFile(fd=3, target="/dev/nvidia0", kind="gpu"),),
        source=SYNC.get(frames[0], ""),
        active=now["stack"]["active"],
        gil=now["stack"]["gil"],
    )
    identity = RankIdentity(rank=0, world_size=2, pid=result.pid)
    found = classify(RankCapture(identity=identity, process=result))
    return {
        "role": found.role,
        "class_name": found.name,
        "operation": found.operation,
        "doing": found.doing,
        "frames_signature": "|".join(frames),
    }
