"""pystack's text (1.7.2), read like py-spy's."""

import subprocess
import sys
from pathlib import Path

from mldebug.capture.frames import principal
from mldebug_agents.capture.stacks.pystack import find_pystack, parse_pystack, second_opinion
from mldebug_agents.system.child.programs import FakeSpawner
from mldebug_agents.system.spawn import Completed, Spawner

H200 = Path(__file__).parents[2] / "fixtures" / "h200"


def test_a_recording_gives_the_same_place_as_py_spy() -> None:
    text = (H200 / "hang-sleep" / "pystack-sleep-r1.txt").read_text()
    main = principal(parse_pystack(text, 621), 621)

    assert [frame.label for frame in main.frames] == [
        "slow_data_loader (train.py:7)",
        "<module> (train.py:19)",
    ]


def test_it_is_asked_without_blocking_the_target() -> None:
    fake = FakeSpawner(lambda argv: Completed(returncode=1))

    assert second_opinion(fake, "/opt/pystack", 42, 5.0) == ()
    assert [tuple(call) for call in fake.calls] == [("/opt/pystack", "remote", "--no-block", "42")]


def test_without_the_extra_there_is_none() -> None:
    assert second_opinion(FakeSpawner(lambda argv: Completed(returncode=0)), "", 42, 5.0) == ()


def test_a_real_process(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import time\ndef load():\n    print('up', flush=True)\n    time.sleep(60)\nload()\n"
    )
    with (
        Spawner() as spawner,
        subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as job,
    ):
        assert job.stdout is not None
        assert job.stdout.readline() == b"up\n"
        stacks = second_opinion(spawner, find_pystack(), job.pid, 20.0)
        job.kill()

    assert principal(stacks, job.pid).frames[0].function == "load"
