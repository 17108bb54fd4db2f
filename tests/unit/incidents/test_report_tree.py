"""The merged tree as a flat list of branches."""

from mldebug.core.model import TreeNode
from mldebug.incidents.report.stack_tree import MAX_NODES, branches, left_out


def node(frame: str, ranks: str, count: int, *children: TreeNode) -> TreeNode:
    return TreeNode(frame=frame, ranks=ranks, count=count, children=children)


def test_frames_that_the_same_ranks_share_are_one_branch() -> None:
    tree = (node("a", "0-2", 3, node("b", "0-2", 3, node("c", "0-1", 2), node("d", "2", 1))),)
    found = branches(tree, [2], 3)
    assert [branch.frames for branch in found] == [["a", "b"], ["c"], ["d"]]
    assert [branch.leaf for branch in found] == [False, True, True]
    assert [branch.closes for branch in found] == [0, 1, 2]
    assert [branch.culprits for branch in found] == [[2], [], [2]]


def test_a_rank_that_stops_midway_keeps_its_branch_apart() -> None:
    tree = (node("a", "0-1", 2, node("b", "0", 1)),)
    assert [branch.frames for branch in branches(tree, [], 2)] == [["a"], ["b"]]


def test_closes_balance() -> None:
    tree = tuple(
        node(f"r{i}", "0-8", 9, node("x", "0-3", 4, node("y", "0", 1)), node("z", "4", 1))
        for i in range(5)
    )
    found = branches(tree, [], 9)
    level = 0
    for branch in found:
        level += 1 - branch.closes
    assert level == 0


def test_a_huge_tree_is_cut_and_says_so() -> None:
    tree = (node("a", "0-9999", 10_000, *(node(f"f{i}", str(i), 1) for i in range(10_000))),)
    assert len(branches(tree, [], 10_000)) == MAX_NODES
    assert left_out(tree) == 10_001 - MAX_NODES


def test_no_tree() -> None:
    assert branches((), [], 0) == []
    assert left_out(()) == 0
