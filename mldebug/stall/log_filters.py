"""Which log records are progress of the training loop: those of the main loop's own lines that report something new.

**Whose line.** Other threads (that poll, wait or measure) print counts too, and go on while the training loop hangs. The words of a
line do not tell them apart, but what the run printed before does. Two lines have the same shape where they differ in numbers alone. Once
the loop has printed lines of one shape at regular times (its rhythm), a line of another shape with nothing but a count (no loss, metric,
total or epoch) is taken for another thread's, until the job's processes are replaced. It is taken for the loop's where it

- is of a known format, or has a loss, a metric, a total or an epoch: another phase of the loop, such as an evaluation;
- came before there was a rhythm: lines that alternate from the start, or a job that prints nothing else;
- continues the run's step: the same loop in other words;
- has no word before its count, and the rhythm never had a loss: progress bars of a start-up.

A thread may also have counted beside the loop from the start. Its lines are taken for the loop's while lines with a loss come between
them as before; where they go on without these for longer than ever (`ALONE` times as many, at least `WEAK_RHYTHM`), the loop has
stopped and they are another thread's, until the loop's come again. Lines that only began when those had ended are a new phase.

Such a line of a new shape sets the run's step only where it continues it, or after `TAKES_OVER` of its kind in a row. Where lines call their
count that of the whole run, other counts beside them are parts of its steps and never the run's.

**What is new.** A monitor thread repeats its own step, several ranks print the same one, a bar is redrawn: numbers that came before are
no progress, in any order. A loop that starts again from its beginning repeats numbers as well; that is progress where its count had
climbed before. A loop of fewer than `RISES` + 1 lines that are always the same shows no progress. Pure.
"""

from itertools import pairwise

from mldebug.jobs.logs.records import LogRecord

RHYTHM = 3  # records with a loss after which the loop is known
WEAK_RHYTHM = 8  # records of one shape, without a loss
ALONE = 3  # times as many lines with a bare count as ever came between two that have more
TAKES_OVER = 8  # records in a row of a new shape, after which they tell the run's step
NEAR = 8  # steps by which a count may be ahead and still go on from the run's
WHOLE_RUN = 2  # lines with the whole run's count, from which on it is the run's
PARTS = 64  # other counts in a row after which there may be no more of these
MAX_SHAPES = 64

Shape = tuple[str, str, bool]  # format, words, bare


class MainLoopFilter:
    """Decides which log records are the training loop's own, by the shape of their lines: the words up to the count."""

    def __init__(self) -> None:
        self._own: dict[Shape, int] = {}  # how often
        self._foreign: set[Shape] = set()
        self._leading: set[Shape] = set()  # whose step is the run's
        self._in_a_row: tuple[Shape, int] | None = None
        self._losses = 0
        self._stride = 1
        self._companions = _Companions()
        self._whole_run = _WholeRun()

    def owns(self, record: LogRecord, step: int | None) -> bool:
        """Whether the training loop wrote this record, and not another thread; the answer for its shape of line is kept. `step`:
        the run's current step.
        """
        shape = _shape_of(record)
        if shape in self._own:
            return not self._went_on_alone(shape)
        if shape in self._foreign or self._is_foreign(record, step):
            if len(self._foreign) < MAX_SHAPES:
                self._foreign.add(shape)
            return False
        if len(self._own) < MAX_SHAPES:
            self._own[shape] = 0
        return True

    def learn(self, record: LogRecord) -> None:
        """Count one new record of the training loop for its shape of line, and whether it has a loss."""
        shape = _shape_of(record)
        if shape in self._own:
            self._own[shape] += 1
        self._losses += record.loss is not None
        self._companions.add(shape, record)

    def leads(self, record: LogRecord, step: int | None, total: int | None = None) -> bool:
        """Whether the step of this record becomes the run's step; its shape of line then leads from now on. `record` must be the
        training loop's own; `step`: the run's step so far; `total`: of how many.
        """
        shape = _shape_of(record)
        if self._whole_run.outranks(record):
            return False
        if shape in self._leading and _is_inside(record, step, total):
            return False
        if not (shape in self._leading or self._goes_on(record, step) or not self._has_rhythm):
            before = self._in_a_row
            times = before[1] + 1 if before is not None and before[0] == shape else 1
            self._in_a_row = shape, times
            if times < TAKES_OVER:
                return False
        if step is not None and record.step is not None and step < record.step:
            self._stride = record.step - step
        self._in_a_row = None
        if len(self._leading) < MAX_SHAPES:
            self._leading.add(shape)
        return True

    def step_without(self, record: LogRecord, step: int | None) -> int | None:
        """The run's step after a record that is not of the main loop: `step`, or an earlier one where `step` was counted by a
        background thread that wrote on while the main loop stood.
        """
        last = self._companions.step
        return last if last is not None and self._went_on_alone(_shape_of(record)) else step

    def _went_on_alone(self, shape: Shape) -> bool:
        return self._losses >= RHYTHM and self._companions.is_left_alone(shape)

    @property
    def _has_rhythm(self) -> bool:
        return self._losses >= RHYTHM or max(self._own.values(), default=0) >= WEAK_RHYTHM

    def _is_foreign(self, record: LogRecord, step: int | None) -> bool:
        """Whether a record of an unfamiliar shape is another thread's."""
        if not (record.bare and self._has_rhythm) or self._goes_on(record, step):
            return False
        return self._losses >= RHYTHM or " " in record.shape

    def _goes_on(self, record: LogRecord, step: int | None) -> bool:
        if step is None or record.step is None:
            return False
        return 0 <= record.step - step <= max(NEAR, self._stride)


class _WholeRun:
    """Lines that call their count that of the whole run (`global step 12`): where a loop prints them, its other counts (micro-steps,
    prompts, steps of an epoch) are parts of these steps, until they have gone on alone for much longer than ever.
    """

    def __init__(self) -> None:
        self._times = self._since = self._most = 0

    def outranks(self, record: LogRecord) -> bool:
        """Take one record with a step; whether it is another count, beside that of the whole run."""
        if record.whole_run:
            self._most = max(self._most, self._since) if self._times else 0
            self._times, self._since = self._times + 1, 0
            return False
        self._since += 1
        return self._times >= WHOLE_RUN and self._since <= max(PARTS, ALONE * self._most)


class _Companions:
    """How many lines of each bare shape came since the last line that had more than a count, and at most between two of these."""

    def __init__(self) -> None:
        self.step: int | None = None  # of the last line that had more than a count
        self._since: dict[Shape, int] = {}
        self._most: dict[Shape, int] = {}

    def add(self, shape: Shape, record: LogRecord) -> None:
        """Count one new record of the training loop."""
        if record.bare:
            if shape in self._since or len(self._since) < MAX_SHAPES:
                self._since[shape] = self._since.get(shape, 0) + 1
            return
        self.step = record.step if record.step is not None else self.step
        for one, times in self._since.items():
            if one in self._most or len(self._most) < MAX_SHAPES:
                self._most[one] = max(times, self._most.get(one, 0))
        self._since = {}

    def is_left_alone(self, shape: Shape) -> bool:
        """Whether lines of this shape, which came between others, have gone on without these for longer than they ever did."""
        most = self._most.get(shape, 0)
        return most > 0 and self._since.get(shape, 0) >= max(WEAK_RHYTHM, ALONE * most)


def _is_inside(record: LogRecord, step: int | None, total: int | None) -> bool:
    """Whether a bar like the run's own, but of fewer steps, came before that one's end: an evaluation without a name."""
    if step is None or total is None or record.total is None:
        return False
    return record.total < total and step < total


def _shape_of(record: LogRecord) -> Shape:
    return record.format, record.shape, record.bare


KEPT = 32  # last different contents; a hang repeats fewer, by however many threads


RISES = 3  # steps that a count must have climbed before it may start again


ECHO = 8  # steps by which one rank may be behind another


Count = tuple[str, int | None]  # format, total


Content = tuple[
    str, int | None, int | None, str, str, int
]  # format, total, step, loss, place, mark


class NoveltyFilter:
    """Remembers the contents of a run's last log records, to tell a new record from a repeated one."""

    def __init__(self) -> None:
        self._recent: dict[Content, None] = {}
        self._lone: Content | None = (
            None  # the last with nothing but a loss or a duration: these recur
        )
        self._evaluations: dict[
            Content, None
        ] = {}  # without step and loss: how far an evaluation is

    def is_news(self, record: LogRecord) -> bool:
        """Add one record, and return whether it is progress: it shows something that the records remembered do not, or a loop
        that started again from its beginning.
        """
        content = _content_of(record)
        if record.step is None and not record.place:
            before, self._lone = self._lone, content
            return content != before
        if record.step is None and record.loss is None:
            return _add_new(content, self._evaluations)
        if content in self._recent and self._starts_again(record):
            self._forget((record.format, record.total))
        is_new = _add_new(content, self._recent)
        if is_new and self._evaluations:
            self._evaluations = {}  # the next evaluation counts like the last
        return is_new

    def _starts_again(self, record: LogRecord) -> bool:
        """Whether its count climbed, and fell to its beginning or by more than ranks are apart."""
        count, step = (record.format, record.total), record.step
        steps = [it[2] for it in self._recent if it[:2] == count and it[2] is not None]
        if step is None or not steps or step >= steps[-1]:
            return False
        rises = sum(later > earlier for earlier, later in pairwise(steps))
        return rises >= RISES and (step <= 1 or steps[-1] - step > ECHO)

    def _forget(self, count: Count) -> None:
        self._recent = {content: None for content in self._recent if content[:2] != count}


def _add_new(content: Content, contents: dict[Content, None]) -> bool:
    if content in contents:
        return False
    contents[content] = None
    if len(contents) > KEPT:
        del contents[next(iter(contents))]
    return True


def _content_of(record: LogRecord) -> Content:
    """Losses are compared as text: no nan equals another. A duration counts where a line has nothing else."""
    lone = record.step is None and record.loss is None
    value = record.step_seconds if lone else record.loss
    return record.format, record.total, record.step, str(value), record.place, record.mark
