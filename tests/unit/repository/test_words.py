"""One subject, one name; one name, one thing: what the tree and the words of the code must keep."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.plugins import PACKAGES, load, names
from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
ROOTS = {
    "mldebug": ROOT / "mldebug",
    "agents": ROOT / "agents/mldebug_agents",
    "training": ROOT / "agents/mldebug_training",
    "exporters": ROOT / "exporters/mldebug_exporters",
}
FILES = [file for root in ROOTS.values() for file in sorted(root.rglob("*.py"))]
MOST = 15  # entries of a folder
# folders that may be longer: how many entries each has at most, and why a level more would make the way to a file longer
LONG = {
    ROOTS["mldebug"]: (17, "one folder for each subject of docs/glossary.md, of the same name in each root"),
    ROOTS["agents"]: (16, "the same"),
    ROOTS["exporters"] / "metrics": (16, "one file for each group, of the name of its subject"),
}  # fmt: skip
# words of an earlier dialect, as parts of the names of modules, classes and functions
RETIRED = {
    "house",
    "room",
    "rooms",
    "desk",
    "desks",
    "board",
    "boards",
    "scribe",
    "keeper",
    "witness",
    "witnesses",
    "told",
    "ledger",
    "door",
    "doors",
    "shelf",
}
# participles that stood as nouns ("what was said"); before another word they describe it, and stay: `seen_since`, `asked_at`
PARTICIPLES = {"told", "untold", "said", "asked", "seen", "heard", "unheard"}
# words for which the design has another one (checkpoint, exit, peer), and the folders in which they may not stand
OTHERS = {
    "save": "", "saves": "", "ending": "", "endings": "",
    "member": "cluster/", "members": "cluster/",  # elsewhere those of a process group, the word of torch and NCCL
}  # fmt: skip
# names that stay, by a reason
FINE = {
    "room on a disk or in a queue": {"_make_room", "_check_room", "NoRoomError"},
    "the word of PyTorch, `torch.save`": {"torch_save", "TorchSave"},
    "a verb: a report is saved": {"save", "save_new", "_save", "SaveReport"},
    "the switch that users call `save` (docs/training-helpers.md)": {"SAVE", "SAVE_SWITCH", "saves", "on_save_done"},
    "keywords and figures of the deadline helper, which jobs call": {"ASSUMED_SAVE", "_measured_save"},
    "a config key and a metric": {"saves_left"},
    "values that users meet: a kind of exit, a job's standing": {"ASKED", "ENDING"},
}  # fmt: skip
FINE_NAMES = {name for names in FINE.values() for name in names}


def words(name: str) -> set[str]:
    """The words of an identifier, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


SUBJECTS = {
    "alerts", "capture", "cli", "cluster", "config", "core", "diagnosis", "fleet", "goodput", "hardware", "incidents", "jobs",
    "probes", "stall", "state", "status", "storage", "support", "system", "watch", "web",
}  # fmt: skip
# subjects without a test folder of their own name, and test folders that stand for no folder of that name
NO_TESTS = {"status"}  # tested by what it shows, in web/ and cli/
OTHER_TESTS = {"exporters", "repository", "training"}
# config sections by subject, where the section has another name; each name is older than the folders and stays as users know it
SECTIONS = {
    "agent": "agent", "capture": "capture", "stall": "stall", "goodput": "goodput", "cluster": "cluster", "metrics": "exporters", "checkpoints": "storage",
    "storage": "storage", "memory": "hardware", "probes": "probes", "health": "hardware", "gpus": "hardware", "events": "alerts", "channels": "alerts",
    "actions": "alerts", "fleet": "fleet", "hub": "fleet", "schedulers": "jobs", "jobs": "jobs", "logs": "jobs", "transports": "cluster", "trees": "storage",
}  # fmt: skip

# groups of metrics by subject: the files of exporters/mldebug_exporters/metrics/. Groups of one name with their subject are as the
# rule says; the others have the older name that users' dashboards know, or are one of several of a subject
METRICS = {
    "actions": "alerts", "agent": "agent", "checkpoints": "storage", "cluster": "cluster", "events": "alerts", "filesystems": "storage", "fleet": "fleet", "goodput": "goodput",
    "gpus": "hardware", "health": "hardware", "hooks": "jobs", "incidents": "incidents", "kernellog": "hardware", "memory": "hardware", "ports": "hardware",
    "probes": "probes", "rank_gpus": "hardware", "runs": "watch", "scalars": "goodput", "scheduler": "jobs", "traces": "capture", "traps": "jobs", "trees": "storage", "writers": "storage",
}  # fmt: skip
NO_METRICS = {
    "cli": "prints", "config": "the build info of `agent` has what there is to tell", "core": "is not met by users",
    "diagnosis": "its verdicts are labels of `incidents`", "stall": "its stages are labels of `runs`", "state": "in `agent`: what is lost and waits",
    "status": "is what all groups are made of", "support": "runs by hand", "system": "in `agent`: children and their cost", "web": "shows them",
}  # fmt: skip
# pages of the documentation by subject
PAGES = {
    "across-nodes": "cluster", "actions": "alerts", "checkpoints": "storage", "commands": "cli", "field-cases": "diagnosis",
    "fleet": "fleet", "flight-recorder": "capture", "flight-recorder-collection": "capture", "goodput": "goodput", "gpus": "hardware", "hook": "jobs", "host-memory": "hardware",
    "kernel-log": "hardware", "known-traps": "jobs", "metrics": "exporters", "nccl-ras": "capture", "notifications": "alerts",
    "ports": "hardware", "preflight": "probes", "profile": "capture", "probes": "probes", "run-records": "jobs", "scheduler": "jobs", "settings": "config", "storage": "storage", "storage-trees": "storage", "storage-usage": "storage",
    "support-bundle": "support", "trace": "capture", "trace-reading": "capture", "training-helpers": "training",
    "top": "status", "troubleshooting": "support", "verdicts": "diagnosis", "web": "web",
}  # fmt: skip
OTHER_PAGES = {  # about the whole, or how to begin
    "architecture", "benchmarks", "dependencies", "drop-zone", "faq", "glossary", "gpu-validation", "grafana", "index", "kubernetes", "mcp", "peers", "plugins", "quick-start", "rights",
    "security", "seeds", "sizing", "slurm-quick-start",
}  # fmt: skip
NO_PAGE = {
    "core": "is not met by users", "incidents": "verdicts.md says what is in a report, commands.md how to see one", "stall": "verdicts.md, and README: The agent",
    "state": "settings.md: agent.state_dir", "system": "rights.md", "watch": "README: The agent",
}  # fmt: skip


def classes() -> dict[str, set[str]]:
    found = defaultdict(set)
    for file in FILES:
        for node in tree_of(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(str(file.relative_to(ROOT)))
    return found


def test_a_class_name_stands_in_one_module() -> None:
    twice = {name: sorted(files) for name, files in classes().items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name != "Options"} == {}


def test_options_belong_to_plugins() -> None:
    folders = {package.replace(".", "/") for packages in PACKAGES.values() for package in packages}
    stray = [file for file in classes()["Options"] if not any(folder in file for folder in folders)]
    assert stray == []


@pytest.mark.parametrize("root", sorted(ROOTS))
def test_no_folder_is_long(root: str) -> None:
    folders = [ROOTS[root], *(each for each in ROOTS[root].rglob("*") if each.is_dir())]
    long = {}
    for folder in folders:
        if folder.name == "__pycache__":
            continue
        entries = {each.name for each in folder.iterdir()} - {
            "__init__.py",
            "__main__.py",
            "__pycache__",
            "py.typed",
        }
        most, _reason = LONG.get(folder, (MOST, ""))
        if len(entries) > most:
            long[str(folder.relative_to(ROOT))] = len(entries)
    assert long == {}


def test_no_root_has_many_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {each["name"]: len(each["layers"]) for each in contracts["contracts"] if "layers" in each}  # fmt: skip
    assert len(layers) == 4
    assert {name: count for name, count in layers.items() if count > MOST} == {}


def test_a_plugin_without_settings_has_no_options() -> None:
    empty = [
        f"{kind}/{name}"
        for kind in PACKAGES
        for name in names(kind)
        if "Options" in vars(module := load(kind, name)) and not module.Options.__struct_fields__
    ]
    assert empty == []


def names_of(file: Path) -> Iterator[tuple[str, bool]]:
    """Every name that a file gives, and whether it is one of a variable, field or parameter: others are read more widely."""
    yield file.stem, False
    for part in file.relative_to(ROOT).parts[:-1]:
        yield part, False
    for node in nodes_of(tree_of(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, False
        elif isinstance(node, ast.arg):
            yield node.arg, True
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, True


def is_retired(name: str, variable: bool, folder: str) -> bool:
    """Whether a name has a word that the design retires, in a file of this folder."""
    if name in FINE_NAMES:
        return False
    own = words(name)
    # a room in a queue and the board of a GPU may be variables, and so may `told_to_stop`
    if own & (RETIRED - {"room", "rooms", "board", "boards", "told"} if variable else RETIRED):
        return True
    if any(word in own and place in f"{folder}/" for word, place in OTHERS.items()):
        return True
    alone = re.sub(r"^_*(?:max_)?|_+$", "", name.lower()) in PARTICIPLES
    return alone or (
        name.lstrip("_")[:1].isupper() and not name.isupper() and bool(own & PARTICIPLES)
    )


@pytest.mark.parametrize(
    ("name", "variable", "folder", "retired"),
    [
        ("said", True, "core", True),
        ("_untold", True, "hardware", True),
        ("MAX_TOLD", True, "cluster", True),
        ("_SeenRun", False, "incidents", True),
        ("MemberView", False, "mldebug/cluster", True),
        ("members", True, "mldebug/capture", False),
        ("endings", True, "incidents", True),
        ("save_troubles", True, "status", True),
        ("seen_since", True, "stall", False),
        ("pending", True, "jobs", False),
        ("saves_left", True, "config", False),
    ],
)
def test_what_is_retired(name: str, variable: bool, folder: str, retired: bool) -> None:
    assert is_retired(name, variable, folder) is retired


def test_retired_words_name_nothing() -> None:
    # names on disk and on the wire are strings (`msgspec.field(name=...)`), and stay
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in FILES
        for name, variable in names_of(file)
        if is_retired(name, variable, str(file.parent.relative_to(ROOT)))
    }
    assert sorted(found) == []


def test_tests_name_no_value_after_a_participle() -> None:
    files = [
        file for file in sorted((ROOT / "tests").rglob("*.py")) if "fixtures" not in file.parts
    ]
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name, _ in names_of(file)
        if name.lower() in PARTICIPLES
    }
    assert sorted(found) == []


def test_every_exception_is_needed() -> None:
    used = {name for file in FILES for name, _ in names_of(file)}
    assert sorted(FINE_NAMES - used) == []


def test_a_subject_has_one_name_in_all_roots_and_in_the_tests() -> None:
    there = {
        folder.name
        for root in ("mldebug", "agents")
        for folder in ROOTS[root].iterdir()
        if folder.is_dir() and folder.name not in ("__pycache__", "agent")
    }
    assert there == SUBJECTS
    tests = {folder.name for folder in (ROOT / "tests/unit").iterdir() if folder.is_dir()} - {"__pycache__"}  # fmt: skip
    assert tests - OTHER_TESTS == SUBJECTS - NO_TESTS


def test_each_section_of_the_config_belongs_to_a_subject() -> None:
    from mldebug.config.schema import Config

    sections = set(Config.__struct_fields__)
    assert sections == set(SECTIONS)
    assert set(SECTIONS.values()) <= SUBJECTS | {"agent", "exporters"}


def test_each_group_of_metrics_belongs_to_a_subject() -> None:
    assert set(names("metrics")) == set(METRICS)
    assert set(METRICS.values()) <= SUBJECTS | {"agent"}
    assert SUBJECTS - set(METRICS.values()) == set(NO_METRICS)
    folders = {name: load("metrics", name).__name__.split(".")[2:-1] for name in METRICS}
    assert [name for name, folder in folders.items() if folder not in ([], [METRICS[name]])] == []


def test_each_command_in_a_folder_belongs_to_its_subject() -> None:
    """A folder is for a subject with several commands; one that is alone stands beside the folders."""
    folder = ROOTS["agents"] / "cli/commands"
    commands = {each.name: {file.stem for file in each.glob("*.py")} - {"__init__"} for each in folder.iterdir() if each.is_dir() and each.name != "__pycache__"}  # fmt: skip
    assert commands.keys() <= SUBJECTS | {"agent"}
    assert [subject for subject, names in commands.items() if len(names) < 2] == []


def test_each_page_belongs_to_a_subject() -> None:
    pages = {file.stem for file in (ROOT / "docs").glob("*.md")}
    assert pages == set(PAGES) | OTHER_PAGES
    assert set(PAGES.values()) <= SUBJECTS | {"exporters", "training"}
    assert SUBJECTS - set(PAGES.values()) == set(NO_PAGE)


# of people, where a process, a file or a user is meant; "ours", where the reader does not know whose
PRONOUNS = re.compile(r"\b(?:he|him|his|she|her|whoever|of ours)\b", re.IGNORECASE)


def public(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The public functions and classes of a module, and those of its classes: each name with its docstring."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":  # fmt: skip
            yield node.name, ast.get_docstring(node) or ""
            yield from public(node.body) if isinstance(node, ast.ClassDef) else ()


def documented(file: Path) -> Iterator[tuple[str, str]]:
    """The docstring of a module, and those of what is public in it."""
    tree = tree_of(file.read_text())
    yield "the module", ast.get_docstring(tree) or ""
    yield from public(tree.body)


def test_a_pronoun_is_found() -> None:
    source = 'class A:\n    def f():\n        """For whoever has it, and his."""\n    def _g():\n        """Him."""'
    assert [name for name, text in public(ast.parse(source).body) if PRONOUNS.search(text)] == ["f"]
    assert not PRONOUNS.search("The others, theirs and everyone.")


# how a sentence begins that goes on with another one, which its reader may not have: a docstring is read alone
GOES_ON = re.compile(r"^(?:The same|Those|These|It|Its|They|Their|Them|Also|Throw it)\b")


def test_a_sentence_that_goes_on_with_another_is_found() -> None:
    begun = ("The same for a report.", "Those of the pids that ended.", "It wakes.", "Throw it away.")  # fmt: skip
    assert all(map(GOES_ON.search, begun))
    assert not any(map(GOES_ON.search, ("The pids that have ended.", "Items of the list.")))


def test_docstrings_are_understood_alone() -> None:
    files = [file for file in FILES if "commands" not in file.parts]
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name, text in documented(file)
        if GOES_ON.search(text)
    }
    assert sorted(found) == []


FIELD_FIRST = re.compile(r"`\w+`(?: and `\w+`)?:")
FEWEST = 4  # words of a docstring, or of its first paragraph


def says_little(kind: type[ast.AST], text: str) -> bool:
    """Whether a docstring explains fields of what it never names, or is too short to say what is meant."""
    first = text.partition("\n\n")[0]
    few = len(re.findall(r"[\w`'./-]+", first)) < FEWEST
    return few or (kind is ast.ClassDef and FIELD_FIRST.match(text) is not None)


@pytest.mark.parametrize(
    ("kind", "text", "little"),
    [
        (ast.ClassDef, "`step`: what to do about it, in one sentence.", True),
        (ast.ClassDef, "A cause of slowness. `step`: what to do about it.", False),
        (ast.FunctionDef, "`name`: that of the file.", False),
        (ast.FunctionDef, "All families.", True),
        (ast.FunctionDef, "Every metric of the hub.", False),
    ],
)
def test_what_says_little(kind: type[ast.AST], text: str, little: bool) -> None:
    assert says_little(kind, text) is little


def test_docstrings_say_what_is_meant() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {node.name}"
        for file in FILES
        if "commands" not in file.parts
        for node in nodes_of(tree_of(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.name[0] != "_"
        and (text := ast.get_docstring(node))
        and says_little(type(node), text)
    }
    assert sorted(found) == []


def test_docstrings_say_who_is_meant() -> None:
    # the docstrings of commands are help texts, which users know
    files = [file for file in FILES if "commands" not in file.parts]
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name, text in documented(file)
        if PRONOUNS.search(text)
    }
    assert sorted(found) == []
