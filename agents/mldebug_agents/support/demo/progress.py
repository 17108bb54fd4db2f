"""Live progress of the demo job: one bar for each rank on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from mldebug.core.errors import ToolError
from mldebug_agents.support.demo.job import STRIKE_AT, DemoJob, DemoStep

START_TIMEOUT = (
    240.0  # seconds until the job must be stuck; importing torch on a busy machine takes long
)
LOOK = 0.1
PLAIN_EVERY = 10  # steps between two plain lines


def show_progress(job: DemoJob, console: Console) -> None:
    """Show the job's steps until it is stuck. Raises ToolError where it ends before, or does not get so far in time."""
    deadline = time.monotonic() + START_TIMEOUT
    display = (
        ProgressBars(job.plan.ranks, console) if console.is_terminal else ProgressLines(console)
    )
    with display:
        while not job.stuck(steps := job.steps()):
            display.show(steps)
            if time.monotonic() > deadline:
                raise ToolError(
                    f"the demo's training job did not get stuck in {START_TIMEOUT:.0f} s",
                    "is this machine very busy? try again, or with fewer --ranks",
                )
            time.sleep(LOOK)
        display.show(steps)


class ProgressBars:
    """A progress bar for each rank; the bar of a rank that hangs stops growing."""

    def __init__(self, ranks: int, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(30),
            TextColumn("step {task.completed:>3} {task.fields[loss]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._tasks: list[TaskID] = [
            self._progress.add_task(f"rank {rank}", total=STRIKE_AT + 1, loss="")
            for rank in range(ranks)
        ]

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, steps: list[DemoStep]) -> None:
        """Draw the step that each rank has reached."""
        for task, step in zip(self._tasks, steps, strict=True):
            loss = f"loss {step.loss}" if step.loss else "starting"
            self._progress.update(task, completed=step.step, loss=loss)


class ProgressLines:
    """Prints the step of rank 0 now and then, for output that is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, steps: list[DemoStep]) -> None:
        """Print the step of rank 0, if that is due."""
        first = steps[0]
        if first.step >= self._printed + PLAIN_EVERY:
            self._printed = first.step - first.step % PLAIN_EVERY
            self._console.print(f"step {first.step} loss {first.loss}", highlight=False)
