"""Groups that a rank knows of without being a member: they count for their members."""

from pathlib import Path

import pytest

from mldebug.capture.flight_recorder.analysis import analyse
from mldebug.capture.flight_recorder.files.folder import read_folder
from shared.capture.dumps import calls, dump, made, write

GROUPS = {"0": range(4), "dp": [0, 2], "tp": [2, 3]}


@pytest.mark.parametrize("strangers", [(), (1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("last", ["started", "scheduled"])
def test_a_chain_of_groups_ends_at_who_has_called_nothing(
    strangers: tuple[int, ...], last: str, tmp_path: Path
) -> None:
    """0 waits for 2 in one group, 2 for 3 in another. `strangers`: ranks whose dumps list all groups, also those of others."""
    own = {
        0: [made("all_reduce", 3, state=last, group="dp", at=9)],
        1: [],
        2: [made("all_reduce", 2, group="dp", at=7), made("all_gather", 4, state=last, group="tp", at=8)],
        3: [made("all_gather", 3, group="tp", at=7)],
    }  # fmt: skip
    dumps = {}
    for rank, more in own.items():
        mine = {name: ranks for name, ranks in GROUPS.items() if rank in ranks or rank in strangers}
        dumps[rank] = dump([*calls(5), *more], mine)
    folder = read_folder(write(tmp_path, dumps))
    found = analyse(folder.records, folder.unreadable)
    assert found.kind == "missing_rank"
    assert found.culprits == (3,)


def test_a_group_in_which_a_stranger_has_called_tells_nothing(tmp_path: Path) -> None:
    """A control: its members are not what the dumps say."""
    dumps = {
        rank: dump(
            [
                *calls(5),
                made("all_reduce", 3, state="started" if rank else "completed", group="dp", at=9),
            ],
            GROUPS,
        )
        for rank in range(4)
    }
    folder = read_folder(write(tmp_path, dumps))
    assert analyse(folder.records, folder.unreadable).culprits == ()
