"""The runs of this node as others hear of them: those that live, and those of which nothing is left but their bad end.

Belongs to the main loop's thread.
"""

from collections.abc import Callable, Mapping

from mldebug.cluster.messages import RunNews
from mldebug.cluster.run_identity import RunKey, job_key
from mldebug_agents.cluster.peers.remote_progress import FarProgress
from mldebug_agents.cluster.peers.run_news import gone, news_of
from mldebug_agents.incidents.recent_failures import BadEnd, BadEnds
from mldebug_agents.watch.runs import Run

Belongs = Callable[[Run], bool]


class Ours:
    """With the progress that other nodes have seen of them."""

    def __init__(self, node: str, bad_ends: BadEnds) -> None:
        self.runs: Mapping[str, Run] = {}
        self._node, self._bad_ends = node, bad_ends
        self._ended: Mapping[str, BadEnd] = {}  # of runs that are gone
        self._far: dict[str, FarProgress] = {}

    def turn(self, runs: Mapping[str, Run]) -> None:
        """Forget all other runs, but for how they ended."""
        self.runs = runs
        for job_id in self._far.keys() - runs.keys():
            del self._far[job_id]
        recent = self._bad_ends.recent().items()
        self._ended = {job_id: one for job_id, one in recent if job_id not in runs}

    @property
    def all(self) -> dict[str, Run]:
        """With those that are gone."""
        return {**self.runs, **{job_id: one.run for job_id, one in self._ended.items()}}

    def find(self, key: RunKey, attempt: int | None = None) -> Run | None:
        """The run of that key, in that attempt or in any."""
        for run in self.runs.values():
            if job_key(run.job, self._node) == key and attempt in (None, run.job.attempt):
                return run
        return None

    def progress(self, job_id: str) -> FarProgress:
        """What is seen of it anywhere."""
        return self._far.setdefault(job_id, FarProgress())

    def forget_progress(self, belongs: Belongs) -> None:
        """Nobody tells of these any more."""
        for job_id, far in self._far.items():
            if job_id in self.runs and belongs(self.runs[job_id]):
                far.forget()

    def news(self, belongs: Belongs, now: float) -> tuple[RunNews, ...]:
        """What there is to tell of these."""
        bad = self._bad_ends.recent()
        runs = tuple(
            news_of(run, self._node, self.progress(run.job.id), bad.get(run.job.id), now)
            for run in self.runs.values()
            if not run.unjudged and belongs(run)
        )
        here = {(news.key, news.attempt) for news in runs}
        ended = (gone(one, self._node) for one in self._ended.values() if belongs(one.run))
        return (*runs, *(news for news in ended if (news.key, news.attempt) not in here))
