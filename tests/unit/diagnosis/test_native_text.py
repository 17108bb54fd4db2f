"""A native stack in the evidence, where libraries have no names: what a person can read, and no bare address."""

from pathlib import Path

import msgspec
import pytest

from mldebug.capture.stacks.pyspy import parse_pyspy_json
from mldebug.core.model import Frame, ProcessCapture
from mldebug.diagnosis.classify.process_facts import native_words
from mldebug.diagnosis.diagnose import diagnose
from shared.capture.stacks import parse_pyspy_text
from shared.diagnosis.builders import capture, rank

H200 = Path(__file__).parents[2] / "fixtures/h200"
DRIVER = "libcuda.so.580.159.04"


def evidence(recording: str) -> list[str]:
    """About a rank whose stacks are those of the recording, while another one sleeps."""
    ranks = []
    for number, name in enumerate((recording, "hang-sleep/pyspy-native-sleep-r1.txt")):
        ((pid, stacks),) = list(parse_pyspy_text((H200 / name).read_text()).items())[:1]
        ranks.append(rank(number, ProcessCapture(pid=pid, stacks=stacks, native=stacks), world=2))
    result = diagnose([capture(*ranks)]).diagnosis.evidence
    return [line for line in result if line.startswith("rank 0") and "native stack" in line]


@pytest.mark.parametrize(
    ("recording", "words"),
    [
        ("signals/sleep-native-r0.txt", f"[vdso] (a frame without a name) < clock_gettime < {DRIVER} (5 frames without names) < cuStreamSynchronize"),
        ("signals/kernel-native-r0.txt", f"{DRIVER} (9 frames without names) < cuStreamSynchronize < libcudart.so.13 (a frame without a name) < cudaStreamSynchronize"),
        ("signals/loop-native-r0.txt", f"{DRIVER} (8 frames without names) < cuStreamSynchronize < libcudart.so.13 (a frame without a name) < cudaStreamSynchronize"),
    ],
)  # fmt: skip
def test_recordings_name_the_library_and_what_the_verdict_rests_on(
    recording: str, words: str
) -> None:
    (line,) = evidence(recording)

    assert line.endswith(f"native stack: {words}")


def test_the_json_of_py_spy_gives_the_same() -> None:
    """Its frames of a library without names: the address, and the library as module and file name."""
    raw = [
        {"name": "0x00007fb73bb51f90", "filename": f"/usr/lib/{DRIVER}", "module": f"/usr/lib/{DRIVER}", "line": 0},
        {"name": "0x00007fb73addfe24", "filename": f"/usr/lib/{DRIVER}", "module": f"/usr/lib/{DRIVER}", "line": 0},
        {"name": "cuStreamSynchronize", "filename": f"/usr/lib/{DRIVER}", "module": f"/usr/lib/{DRIVER}", "line": 0},
    ]  # fmt: skip
    (stack,) = parse_pyspy_json(msgspec.json.encode([{"thread_id": 1, "frames": raw}]))

    assert native_words(stack.frames, "cuStreamSynchronize") == (
        f"{DRIVER} (2 frames without names) < cuStreamSynchronize"
    )


@pytest.mark.parametrize("fault", ["sleep", "desync"])
def test_recordings_of_whole_jobs(fault: str) -> None:
    text = (H200 / f"hang-{fault}/pyspy-native-{fault}-r0.txt").read_text()
    ((stack, *_),) = parse_pyspy_text(text).values()

    assert native_words(stack.frames, "cuCtxSynchronize_v2") == (
        f"[vdso] (a frame without a name) < clock_gettime < {DRIVER} (5 frames without names) < cuCtxSynchronize_v2"
    )


def native(function: str, file: str = "") -> Frame:
    return Frame(function=function, file=file, native=True)


def test_what_the_verdict_rests_on_stands_there_however_far_out_it_is() -> None:
    frames = [native(f"f{number}", "libx.so") for number in range(9)]

    assert native_words(frames, "f7") == "f0 < f1 < … < f7"
    assert native_words(frames, "f3") == "f0 < f1 < f2 < f3"


@pytest.mark.parametrize("file", ["", "?"])
def test_an_address_of_nothing_is_left_out(file: str) -> None:
    frames = [
        native("0x7fb7", file),
        native("0x7fb8", file),
        native("take_gil", "libpython3.12.so"),
    ]

    assert native_words(frames, "take_gil") == "take_gil"
