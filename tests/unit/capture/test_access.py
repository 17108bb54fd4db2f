"""Which ways lead to a Flight Recorder: every row of the table in docs/flight-recorder-collection.md, and what closes a way."""

import re
from pathlib import Path

import pytest

from mldebug.capture.flight_recorder.access import (
    NAMES,
    AccessKind,
    AccessPlan,
    RankFacts,
    dump_files,
    is_nccl2,
    plan,
    records,
)

DOCS = Path(__file__).parents[3] / "docs" / "flight-recorder-collection.md"
PIPE = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/fr_"}
OLD_SIZE = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
NEW_SIZE = {"TORCH_FR_BUFFER_SIZE": "2000"}
HOME = {"HOME": "/home/ann"}
IN_HOME = "/home/ann/.cache/torch/comm_lib_trace_rank_3"
IN_TMP = "/tmp/nccl_trace_rank_3"
ALL = [(2, minor) for minor in range(5, 17)]


def means(torch: tuple[int, int] | None = (2, 11), *backends: str, **known) -> RankFacts:
    environ = HOME | known.pop("environ", {})
    return RankFacts(rank=3, torch=torch, backends=frozenset(backends), environ=environ, **known)


def kinds(found: AccessPlan) -> list[str]:
    return [str(way.kind) for way in found.ways]


# --- by version ----------------------------------------------------------------------------------


@pytest.mark.parametrize("torch", ALL)
def test_what_records_without_any_setting(torch: tuple[int, int]) -> None:
    """Off until 2.10, on since 2.11; that is what decides whether a timeout leaves a dump."""
    assert records(means(torch)) == (torch >= (2, 11))
    assert kinds(plan(means(torch))) == (["dump file"] if torch >= (2, 11) else [])


@pytest.mark.parametrize("torch", ALL)
def test_the_size_switches_the_recorder_on(torch: tuple[int, int]) -> None:
    """The older name on any version, the newer one since 2.8."""
    assert records(means(torch, environ=OLD_SIZE))
    assert records(means(torch, environ=NEW_SIZE)) == (torch >= (2, 8))
    assert not records(means(torch, environ={"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}))
    assert records(means(torch, hooked=True))


@pytest.mark.parametrize("torch", ALL)
def test_where_it_dumps(torch: tuple[int, int]) -> None:
    assert dump_files(means(torch)) == ((IN_TMP,) if torch < (2, 9) else (IN_HOME,))


def test_where_it_dumps_with_a_cache_folder_of_the_job_s_own() -> None:
    there = "/cache/torch/comm_lib_trace_rank_3"
    cache = {"XDG_CACHE_HOME": "/cache"}
    assert dump_files(means((2, 7), environ=cache)) == (IN_TMP,)
    assert dump_files(means((2, 10), environ=cache)) == (there, IN_HOME)
    assert dump_files(means((2, 13), environ=cache)) == (there,)


def test_where_it_dumps_by_its_settings() -> None:
    both = {
        "TORCH_FR_DUMP_TEMP_FILE": "/new/t_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/old/t_",
    }
    assert dump_files(means((2, 11), environ=both)) == ("/new/t_3",)
    assert dump_files(means((2, 7), environ=both)) == ("/old/t_3",)


def test_a_rank_without_a_home_dumps_under_tmp() -> None:
    bare = RankFacts(rank=3, torch=(2, 11))
    assert dump_files(bare) == ("/tmp/.cache/torch/comm_lib_trace_rank_3",)


@pytest.mark.parametrize("torch", ALL)
def test_the_fifo_by_version(torch: tuple[int, int]) -> None:
    """Before 2.11 it takes the older name of the size, and 2.15 has none for its own NCCL."""
    usual = "debug FIFO" in kinds(plan(means(torch, environ=PIPE)))
    assert usual == (torch >= (2, 11) and torch != (2, 15))
    newer = "debug FIFO" in kinds(plan(means(torch, environ=PIPE | NEW_SIZE)))
    assert newer == usual
    older = plan(means(torch, environ=PIPE | OLD_SIZE))
    assert ("debug FIFO" in kinds(older)) == (torch != (2, 15))
    if torch != (2, 15):
        assert older.ways[-1].places == ("/tmp/fr_3.pipe",)


@pytest.mark.parametrize("torch", ALL)
def test_which_nccl_it_is(torch: tuple[int, int]) -> None:
    assert is_nccl2(means(torch)) == (torch >= (2, 15))
    assert is_nccl2(means(torch, environ={"TORCH_DIST_USE_NCCL2": "1"})) == (torch >= (2, 14))
    assert not is_nccl2(means(torch, environ={"TORCH_DIST_USE_NCCL2": "0"}))
    assert not is_nccl2(means(torch, "nccl", "gloo"))  # its threads are the surer sign
    assert is_nccl2(means(torch, "nccl2"))


# --- order and what closes a way -----------------------------------------------------------------


def test_the_cheapest_way_comes_first() -> None:
    found = plan(means(environ=PIPE, hooked=True, servers=("tcp:1",)))
    assert [way.kind for way in found.ways] == list(AccessKind)
    assert found.closed == ()
    assert found.better == ""


CLOSED = {
    "is not set": {},
    "is no absolute path": {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "fr_"},
    "with TORCH_NCCL_BLOCKING_WAIT nobody reads it": PIPE | {"TORCH_NCCL_BLOCKING_WAIT": "1"},
    "with TORCH_NCCL_DUMP_ON_TIMEOUT=0": PIPE | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
    "with TORCH_NCCL_ENABLE_MONITORING=false": PIPE | {"TORCH_NCCL_ENABLE_MONITORING": "false"},
    "its recorder is off": PIPE | {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
    "lets the job choose": PIPE | {"TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1"},
    "no absolute path for it": PIPE | {"TORCH_FR_DUMP_TEMP_FILE": "here_"},
}


@pytest.mark.parametrize("why", CLOSED)
def test_the_fifo_is_closed_because(why: str) -> None:
    found = plan(means(environ=CLOSED[why]))
    assert "debug FIFO" not in kinds(found)
    assert why in dict(found.closed)[AccessKind.FIFO]


def test_gloo_has_neither_fifo_nor_dumps() -> None:
    found = plan(means((2, 13), "gloo", environ=PIPE))
    assert found.ways == ()
    assert dict(found.closed) == {
        AccessKind.DUMP: "gloo never dumps by itself",
        AccessKind.FIFO: "gloo makes none",
    }


def test_of_an_unknown_pytorch_nothing_is_known() -> None:
    found = plan(means(None, environ=PIPE | OLD_SIZE))
    assert (found.ways, found.better) == ((), "")


# --- what would give a better one ----------------------------------------------------------------

RUN = "start the job with `mldebug run -- …`: its ranks then tell their Flight Recorder when they are asked"


@pytest.mark.parametrize(
    ("known", "better"),
    [
        (means((2, 7)), f"{RUN}; or set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_"),
        (means((2, 11)), f"{RUN}; or set TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/fr_"),
        (means((2, 11), environ=PIPE), RUN),
        (means((2, 13), servers=("tcp:1",)), RUN),
        (means((2, 15)), RUN),
        (means((2, 13), "gloo"), RUN),
        (means((2, 12), "gloo"), "gloo records its calls from PyTorch 2.13 on"),
        (means((2, 7), hooked=True), ""),
    ],
)  # fmt: skip
def test_what_setting_would_have_given_a_better_way(known: RankFacts, better: str) -> None:
    assert plan(known).better == better


def test_the_page_names_every_setting_that_is_read() -> None:
    names = set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", DOCS.read_text()))
    assert names >= NAMES
