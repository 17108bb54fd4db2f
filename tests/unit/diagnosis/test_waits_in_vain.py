"""Words of a wait that was in vain, or about somebody who is gone: their speaker is a victim. Words about its own work stay its own, or unclear."""

import pytest

from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.marks import take_apart
from mldebug.diagnosis.exits.words.output import LogOutput, own_errors
from mldebug.diagnosis.exits.words.raised_in import RaisedIn

RAISED = RaisedIn(own_raise=True, stated=True, source="raise Error(text)")


@pytest.mark.parametrize(
    "words",
    [
        "TimeoutError: Rank 1 timed out waiting for features",
        "RuntimeError: Timeout while waiting for the file /tmp/streaming/index.json: 60.0s, leader did not create it",
        "TimeoutError: timed out after 900 s waiting for the rollout engines to take new weights",
        "RuntimeError: waited 120 s for /dev/shm/job/locals.json and it timed out",
        "FileNotFoundError: index file /data/idx.npy did not appear after waiting 300 s for rank 0",
        "LookupError: peer 2 is gone",
        "AssertionError: rank 2 not alive",
        "AssertionError: lost heartbeat from worker 2",
        "ValueError: missing results from ranks [2]",
        "ValueError: trainer 2 has shut down",
        "AssertionError: nothing received from stage 2",
        "AssertionError: not connected to the leader",
        "ValueError: only 3 of 4 replicas voted",
        "MMError: All encoder DP workers are dead.",
    ],
)
def test_the_speaker_is_a_victim(words: str) -> None:
    assert blame_of(words, RAISED) is Blame.PEER


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("TimeoutError: timed out waiting for download of shard 17 from s3", Blame.UNCLEAR),
        ("RuntimeError: timed out waiting for prefetch thread to deliver a batch", Blame.UNCLEAR),
        ("TimeoutError: timed out waiting for the file lock of the cache", Blame.UNCLEAR),
        ("RuntimeError: timed out waiting for GPU memory to become free", Blame.UNCLEAR),
        ("ValueError: learning rate must be positive, got -0.1 in stage 2 of the schedule", Blame.OWN),
        ("ValueError: expected left padding, got right padding in sample 7", Blame.UNCLEAR),
        ("ValueError: image 3 has no channels", Blame.OWN),
    ],
)  # fmt: skip
def test_controls_stay_as_they_are(words: str, blame: Blame) -> None:
    assert blame_of(words, RAISED) is blame


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: DeepEP error: timeout (dispatch CPU)",
        "RuntimeError: DeepEP error: CPU recv timeout",
        "nvidia_resiliency_ext.inprocess.exception.RankShouldRestart",
        "nixl._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        "RuntimeError: torchcomms: NCCLX work timed out after 600000ms on comm default",
        "ChildProcessError: worker died",
        "[rank: 3] Child process with PID 37032 terminated with code 1. Forcefully terminating all other processes to avoid zombies",
    ],
)
def test_libraries_that_pass_on_another_s_end(words: str) -> None:
    assert blame_of(words) is Blame.PEER


TRACEBACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    loss = model(batch)\nValueError: image 3 has no channels'


@pytest.mark.parametrize("folded", ["", " [repeated 7x across cluster]", " [repeated 2x across all nodes]"])  # fmt: skip
def test_an_error_that_ray_shows_once_for_several_is_nobodys_in_particular(folded: str) -> None:
    """Which of the eight processes was first it does not say."""
    lines = [f"(Worker pid=833, ip=10.0.0.3) [rank5]: {line}{folded}" for line in TRACEBACK.split("\n")]  # fmt: skip
    found = own_errors([LogOutput(path="job.log", owner=None, words=take_apart(lines, {}))])
    assert (found[5].unclear, found[5].blames_peer) == (bool(folded), False)
