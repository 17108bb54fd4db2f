"""Parsers that read what a foreign tool prints of a hostile process, and the merge."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.capture.frames import inner, is_user, last_frame, principal, site
from mldebug.capture.stacks.form import MAX_FRAMES, named_frame, short_function
from mldebug.capture.stacks.merge import merge
from mldebug.capture.stacks.pyspy import parse_pyspy_json
from mldebug.core.errors import EvidenceError
from mldebug.core.model import TreeNode
from mldebug.core.ranksets import unfold
from shared.capture.stacks import parse_pyspy_text
from shared.diagnosis.builders import frame, stack

H200 = Path(__file__).parents[2] / "fixtures" / "h200"


def test_json_and_text_of_one_recording_agree() -> None:
    folder = H200 / "hang-desync"
    from_json = parse_pyspy_json((folder / "pyspy-desync-r1.json").read_bytes())
    (from_text,) = parse_pyspy_text((folder / "pyspy-desync-r1.txt").read_text()).values()

    def observed(stacks):
        return {s.tid: (s.name, s.active, [f.label for f in s.frames]) for s in stacks}

    assert observed(from_json) == observed(from_text)
    assert principal(from_json, 861).frames[1].label == "evaluate (train.py:8)"


def test_native_frames_are_told_from_python_ones_and_cut_to_their_name() -> None:
    text = (H200 / "signals" / "kernel-native-r0.txt").read_text()
    ((_, stacks),) = parse_pyspy_text(text).items()
    main = principal(stacks, 1105)

    assert [f.label for f in main.frames if not f.native] == [
        "train_step (rec_train.py:24)",
        "train_for (rec_train.py:29)",
        "<module> (rec_train.py:60)",
    ]
    assert "c10::impl::wrap_kernel_functor_unboxed_" in [f.function for f in main.frames]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b'[{"frames": 3}]',
        b"Process 1: x",
        b"\xff\xfe",
        b"[" * 5000,
        b'[{"pid": "x"}]',
    ],
)
def test_what_is_no_dump_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(EvidenceError, match="this is not py-spy JSON"):
        parse_pyspy_json(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner_: (
        st.lists(inner_, max_size=4) | st.dictionaries(st.text(max_size=12), inner_, max_size=4)
    ),
    max_leaves=20,
)
frames_ = st.fixed_dictionaries(
    {
        "name": st.text(max_size=300),
        "filename": st.text(max_size=50),
        "line": st.integers(-5, 2**31),
    },
    optional={
        "short_filename": st.none() | st.text(max_size=30),
        "module": st.none() | st.text(max_size=30),
    },
)
threads_ = st.fixed_dictionaries(
    {"pid": st.integers(0, 2**22), "thread_id": st.integers(0, 2**60), "active": st.booleans()},
    optional={
        "thread_name": st.none() | st.text(max_size=80),
        "frames": st.lists(frames_, max_size=6),
    },
)


@given(json_values | st.lists(threads_, max_size=4))
def test_any_json_is_parsed_or_refused(value: object) -> None:
    try:
        stacks = parse_pyspy_json(json.dumps(value).encode())
    except EvidenceError:
        return
    for one in stacks:
        text = "".join([one.name, *(f.label for f in one.frames)])
        assert text.isprintable() or not any(ord(c) < 32 or ord(c) == 127 for c in text)


@given(st.text(alphabet='Process Thread():0123456789abcfx \n"+gil<>.py\x1b\r', max_size=400))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    for stacks in parse_pyspy_text(text).values():
        assert all(f.line >= 0 for s in stacks for f in s.frames)


def test_endless_recursion_keeps_both_ends() -> None:
    deep = [{"name": f"f{n}", "filename": "/job/train.py", "line": n + 1} for n in range(5000)]
    (one,) = parse_pyspy_json(json.dumps([{"frames": deep}]).encode())

    assert len(one.frames) == MAX_FRAMES
    assert (one.frames[0].function, one.frames[-1].function) == ("f0", "f4999")


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("std::vector<int>::push_back(int const&)", "std::vector"),
        ("cuStreamSynchronize", "cuStreamSynchronize"),
        ("<module>", "<module>"),
        ("c10d::Work::wait(std::chrono::duration<long>)", "c10d::Work::wait"),
    ],
)
def test_cpp_names_are_cut(name: str, short: str) -> None:
    assert short_function(name) == short


def test_the_site_is_the_innermost_line_of_the_job_itself() -> None:
    frames = stack(
        "select (selectors.py:415)",
        "wait (multiprocessing/connection.py:930)",
        "_try_get_data (torch/utils/data/dataloader.py:1310)",
        "batches (megatron/data.py:7)",
        "train (train.py:3)",
    ).frames

    assert site(frames).label == "batches (megatron/data.py:7)"
    assert len(inner(frames, site(frames))) == 3
    assert not is_user(frame("wait (threading.py:320)"))


def test_the_training_thread_speaks_where_main_only_waits_for_it() -> None:
    """Ray and Lightning train in a thread; the main thread joins it."""
    main = stack("join (threading.py:1119)", "run (launch.py:3)", tid=7)
    trainer = stack(
        "all_reduce (torch/distributed/distributed_c10d.py:9)",
        "step (t.py:4)",
        tid=8,
        name="Thread-1",
    )

    assert principal((main, trainer), 7) is trainer
    assert principal((main,), 7) is main


ranks_and_stacks = st.lists(
    st.lists(st.sampled_from("abcd"), max_size=5).map(tuple), min_size=1, max_size=24
)


@given(ranks_and_stacks)
def test_merging_loses_nobody_and_adds_nobody(stacks: list[tuple[str, ...]]) -> None:
    tree = merge(enumerate(stacks))

    assert sorted(leaf_paths(tree)) == sorted(
        (stack[::-1], rank) for rank, stack in enumerate(stacks) if stack
    )


def leaf_paths(
    nodes: tuple[TreeNode, ...], above: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], int]]:
    """Every (path, rank) that ends at a node: its ranks less those of its children."""
    found = []
    for node in nodes:
        path = (*above, node.frame)
        below = {rank for child in node.children for rank in unfold(child.ranks)}
        assert node.count == len(unfold(node.ranks))
        found += [(path, rank) for rank in unfold(node.ranks) if rank not in below]
        found += leaf_paths(node.children, path)
    return found


def test_the_last_frame_is_in_the_jobs_own_code_where_it_is_below_any() -> None:
    waits = stack("wait (threading.py:331)", "step (train.py:30)", "<module> (train.py:50)", tid=7)
    library = stack("select (selectors.py:468)", tid=7)

    assert last_frame((waits,), 7) == "step (train.py:30)"
    assert last_frame((library,), 7) == "select (selectors.py:468)"
    assert last_frame((), 7) == ""


@pytest.mark.parametrize("folder", ["/opt/mldebug/agents", "/usr/lib/python3/dist-packages"])
def test_the_hook_is_nobodys_code_wherever_it_lies(folder: str) -> None:
    frame = named_frame(f"{folder}/mldebug_training/hook/phases.py", "75", "wrapper")
    assert frame.file == "mldebug_training/hook/phases.py"
    assert not is_user(frame)
    assert is_user(named_frame("/home/ada/phases.py", "75", "wrapper"))
