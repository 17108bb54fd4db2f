"""Lines as 50 programs' own printing code makes them, tables with their column names in another line among them, and tables that are no training.

The code was looked up in public sources (`source`), and the right answers were written down before the parser read a line; where it tells no
step or no loss, null stands. In `source_lines.jsonl` STEP stands for a count, LOSS for a loss that ends at 6.47; `may_step` and `may_loss`
are right as well.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.plugins import create_all
from mldebug.jobs.logs.parser import LogParser
from unit.jobs.test_field_logs import counted, progress_of
from unit.jobs.test_log_stacks import progress_of as progress_in_pieces
from unit.jobs.test_looked_up_stacks import LABELS

LINES = [json.loads(line) for line in (Path(__file__).parents[2] / "fixtures/logs/source_lines.jsonl").read_text().splitlines()]  # fmt: skip
MOVING = [one for one in LINES if one.get("moves")]


def text_of(stack: dict[str, Any]) -> str:
    parts = (stack["before"], counted(stack["text"]), stack["after"])
    return "\n".join(part for part in parts if part).replace("\r", "\n")


def right(stack: dict[str, Any], name: str, found: float | None) -> bool:
    wanted = stack[name] if found is not None else None
    return found in (stack[name], stack.get(f"may_{name}", stack[name])) or (wanted is not None and found == pytest.approx(wanted))  # fmt: skip


@pytest.mark.parametrize("stack", [pytest.param(one, id=one["name"]) for one in LINES])
def test_what_its_printing_code_tells_is_read_behind_every_label(stack: dict[str, Any]) -> None:
    for label in LABELS.values():
        progress, _ = progress_of("\n".join(label(line) for line in text_of(stack).split("\n")))
        assert right(stack, "step", progress.step), progress.step
        assert right(stack, "loss", progress.loss), progress.loss
        if "seconds" in stack:
            assert progress.step_seconds == pytest.approx(stack["seconds"])


@pytest.mark.parametrize("stack", [pytest.param(one, id=one["name"]) for one in LINES])
def test_bytes_in_any_pieces_tell_the_same(stack: dict[str, Any]) -> None:
    progress, _ = progress_in_pieces(text_of(stack), random.Random(stack["name"]))
    assert right(stack, "step", progress.step)
    assert right(stack, "loss", progress.loss)


def parsed(*lines: str) -> list[Any]:
    return LogParser(create_all("logs")).feed("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize("stack", [pytest.param(one, id=one["name"]) for one in MOVING])
def test_each_new_row_is_progress_and_the_same_row_again_is_none(stack: dict[str, Any]) -> None:
    rows = counted(stack["text"]).replace("\r", "\n")
    head = f"{stack['before']}\n" if stack["before"] else ""
    size = len(stack["text"].replace("\r", "\n").split("\n"))
    _, quiet = progress_of(head + rows)
    assert quiet <= 0.25 * size
    last = "\n".join(rows.split("\n")[-size:])
    _, quiet = progress_of(head + rows + f"\n{last}" * 30)
    assert quiet > 0.25 * size * 28


CONTROLS: dict[str, tuple[str, ...]] = {
    "results of an evaluation": ("| Task | Version | Metric | Value |", "|------|--------:|--------|------:|", "| 12 | 1 | 2 | 0.5 |"),
    "evaluations by step": ("| step | val_loss | accuracy |", "|-----:|---------:|---------:|", "| 112 | 4.1 | 0.5 |"),
    "evaluations as CSV": ("step,eval_loss,eval_accuracy", "112,4.1,0.5"),
    "a table of parameters": ("  | Name  | Type   | Params | Mode ", "-----------------------------------", "0 | model | Linear | 12 | train"),
    "layers and what they take": ("Layer (type)      Output Shape      Param #", "1      64      4160"),
    "nvidia-smi": (
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |",
        "| N/A   30C    P0             70W /  700W |    1024MiB /  81559MiB |      0%      Default |",
    ),
    "a schedule": ("step  lr", "112   1e-4"),
    "throughput by batch": ("batch,tokens/s,mfu", "8,1234.5,0.41"),
    "trials of a search": ("trial,lr,loss", "112,0.1,0.5"),
    "settings": ("name,loss,weight", "1,0.5,2"),
    "words about columns": ("Columns are epoch, step and loss.", "12, 13, 14"),
    "disks": ("Filesystem      Size  Used Avail Use%", "112   0.5   3   4   5%"),
    "a confusion matrix": ("class  0  1  2", "112  3  4  5"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS)
def test_a_table_of_something_else_tells_no_step(name: str) -> None:
    assert parsed(*CONTROLS[name]) == []


TRAINED = ("| step | loss | lr |", "|-----:|-----:|---:|", "| 110 | 0.5 | 1e-4 |", "| 111 | 0.4 | 1e-4 |")  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS)
def test_below_a_training_s_table_another_one_changes_nothing(name: str) -> None:
    found = parsed(*TRAINED, *CONTROLS[name], "| 112 | 0.3 | 1e-4 |" if not CONTROLS[name][0].startswith("| step") else "")  # fmt: skip
    assert [one.step for one in found][:2] == [110, 111]
    assert all(one.step in (110, 111, 112) and one.loss in (0.5, 0.4, 0.3) for one in found)


def test_a_table_ends_where_one_of_as_many_columns_begins() -> None:
    assert [one.step for one in parsed(*TRAINED, "| layer | params | flops |", "| 3 | 4160 | 8320 |")] == [110, 111]  # fmt: skip
    again = ("| step | loss | lr |", "| 1 | 0.5 | 1e-4 |")
    assert [one.step for one in parsed(*TRAINED, "| layer | params | flops |", *again)] == [110, 111, 1]  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        "| x | 0.3 | 1e-4 |",
        "| 112 | cuda:0 out | 1e-4 |",
        "| 112 | 0.3 |",
        "| 112 | 0.3 | 1e-4 | 5 |",
        "| 11.5 | 0.3 | 1e-4 |",
        "+-----+-----+-----+",
        "|-----|-----|-----|",
        "| | | |",
        "|" * 2000,
    ],
)
def test_what_is_no_row_of_figures_is_left_out(row: str) -> None:
    assert [one.step for one in parsed(*TRAINED, row)] == [110, 111]


def test_a_row_tells_figures_and_a_gap_in_them() -> None:
    head = "| step | epoch | loss | grad_norm | lr | tokens/s | step time (s) |"
    (record,) = parsed(head, "| 1,112/2,000 | 3 | 0.5 | nan | 1e-4 | 12,345 | 0.25 |")
    assert (record.step, record.total, record.loss, record.place, record.step_seconds) == (1112, 2000, 0.5, "3", 0.25)  # fmt: skip
    assert record.scalars["learning_rate"] == 1e-4
    assert record.scalars["tokens_per_second"] == 12345
    assert str(record.scalars["grad_norm"]) == "nan"
    (record,) = parsed(head, "| 1112 | 3 | No log | - | 1e-4 | n/a |  |")
    assert (record.step, record.loss) == (1112, None)


def test_the_loss_of_an_evaluation_beside_training_s_is_not_the_run_s() -> None:
    (record,) = parsed("step,val_loss,train_loss", "112,4.1,0.5")
    assert (record.step, record.loss) == (112, 0.5)


def test_names_longer_than_a_line_may_be_are_no_table() -> None:
    assert parsed(",".join(["step", "loss", *(f"a{n}" for n in range(100))]), ",".join(["1"] * 102)) == []  # fmt: skip
    assert parsed("step,loss," + "x" * 2000, "1,2,3") == []


WHOLE_RUN = """Train epoch [1/1]: 100%|██████████| 16/16 [00:12<00:00,  1.33it/s, act_loss=0.01]
Global step {step}: {{'policy_loss': 0.5}}
Episode [1/20]:  11%|█         | {step}0/16000 [36:12<3:12:01,  1.45it/s]"""


def test_counts_beside_those_of_the_whole_run_are_not_the_run_s() -> None:
    lines = "\n".join(WHOLE_RUN.format(step=step) for step in range(1, 9))
    assert progress_of(lines)[0].step == 8
    bars = "\n".join(f"Train epoch [1/1]: 5%|█| {n}/900 [00:12<00:00,  1.33it/s, act_loss=0.01]" for n in range(40))  # fmt: skip
    assert progress_of(f"{lines}\n{bars}")[0].step == 8


def test_where_nobody_tells_the_whole_run_any_more_the_other_count_is_the_run_s() -> None:
    lines = "\n".join(f"global step {step}: loss 0.5" for step in range(1, 9))
    bars = "\n".join(f"Training: 5%|█| {n}/900 [00:12<00:00,  1.33it/s]" for n in range(300))
    assert progress_of(f"{lines}\n{bars}")[0].step == 299


def test_colours_within_the_json_of_a_container_are_taken_away() -> None:
    line = json.dumps({"log": "\x1b[33mvalidate step: 12  \x1b[32mloss: 4.1\x1b[39m\n", "stream": "stdout"})  # fmt: skip
    assert [one.step for one in parsed(line)] == [None]
    line = json.dumps({"log": "\x1b[31mstep: 12  \x1b[32mloss: 4.1\x1b[39m\n", "stream": "stdout"})  # fmt: skip
    assert [(one.step, one.loss) for one in parsed(line)] == [(12, 4.1)]
