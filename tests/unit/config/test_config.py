"""A config is obeyed to the letter or refused with every reason at once."""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.config.schema import (
    MAX_BYTES,
    AgentConfig,
    CaptureConfig,
    Config,
    default_state_dir,
    effective_yaml,
    load_config,
)
from mldebug.core.errors import ConfigError, ExitCode
from mldebug.core.units import (
    Duration,
    Size,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from mldebug.core.yaml_reader import Section, parse


def problems(text: str | bytes, tmp_path: Path) -> list[str]:
    """Return what is wrong with a config file named c.yaml, without its folder."""
    file = tmp_path / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.exit_code == ExitCode.USAGE
    return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "agent:\ncapture:\n", "---\n", "\ufeff{}\n"]
)
def test_an_empty_file_is_a_good_config(text: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert load_config(file) == load_config(None) == Config()


def test_every_key_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "agent: {state_dir: /srv/x}\n"
        "capture: {py_spy: /opt/py-spy, deadline: 1m30s, native: never, watch: 250ms, workers: 2}\n"
    )
    assert load_config(file) == Config(
        agent=AgentConfig(state_dir=Path("/srv/x")),
        capture=CaptureConfig(
            py_spy=Path("/opt/py-spy"), deadline=90.0, native="never", watch=0.25, workers=2
        ),
    )


def test_a_key_of_before_is_refused_with_its_new_name(tmp_path: Path) -> None:
    result = problems("capture:\n  preview: false\n", tmp_path)
    assert result == ["c.yaml:2: capture.preview: is now called 'flight_recorder'; write that"]


def test_all_problems_come_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """\
agent:
  state_dir: rel
  statedir: /x
capture:
  deadline: 30
  watch: 90s
  workers: many
  native: no
  workers: 3
  py_spy:
captur: 3
"""
    assert problems(text, tmp_path) == [
        "c.yaml:2: agent.state_dir: 'rel' is not an absolute path",
        "c.yaml:3: agent.statedir: there is no such key; did you mean 'state_dir'? legal here: state_dir, listen, token_file, public_names, join_containers, group",
        "c.yaml:5: capture.deadline: 30 has no unit; write 30s for seconds or 30m for minutes",
        "c.yaml:6: capture.watch: 90s is too large; the largest is 1m",
        "c.yaml:7: capture.workers: 'many' is not 'auto' or a whole number",
        "c.yaml:8: capture.native: 'no' is not 'auto' or 'never' or 'always'",
        "c.yaml:9: capture.workers: stands here twice, first in line 7",
        "c.yaml:10: capture.py_spy: has no value; remove the line to get the default",
        "c.yaml:11: captur: there is no such key; did you mean 'capture'? legal here: agent, capture, stall, goodput, logs, transports, channels, schedulers, gpus, jobs, events, actions, cluster, fleet, hub, checkpoints, memory, metrics, health, probes, trees, storage",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\tagent: 1", "c.yaml:1: this is not YAML: a tab stands where YAML allows only spaces"),
        ("agent:\n\tx: /x", "c.yaml:2: this is not YAML: a tab stands where YAML allows only spaces"),
        ("a: *b", "c.yaml:1: this is not YAML: aliases (*name) are not allowed"),
        ("\n---\na\n---\nb", "c.yaml:4: this is not YAML: only one document is allowed, and here a second one starts"),
        ("[" * 500, "c.yaml:1: this is not YAML: more than 20 levels deep"),
        ("a:\n  \x00", "c.yaml:2: this is not YAML: there is a control character in it"),
        (b"a: 1\n\xff\xfe", "c.yaml:2: is not UTF-8 text"),
        ("- 1", "c.yaml:1: must hold `key: value` lines"),
        ("agent: 3", "c.yaml:1: agent: must hold `key: value` lines"),
        ("agent: !!python/object/apply:os.system [x]", "c.yaml:1: agent: must hold `key: value` lines"),
        ("agent: {state_dir: !!binary aGk=}", "c.yaml:1: agent.state_dir: must be an absolute path"),
        ('agent: {state_dir: "/a\\e[31m"}', "c.yaml:1: agent.state_dir: '/a' has control characters in it"),
        ("? [a]\n: 1", "c.yaml:1: a list or a mapping cannot be a key"),
        ("x: &x {a: 1}\n<<: {b: 1}", "c.yaml:2: '<<' cannot be a key"),
        ("capture: {workers: 65}", "c.yaml:1: capture.workers: 65 is too large; the largest is 64"),
        ("capture: {deadline: 0s}", "c.yaml:1: capture.deadline: 0s is too small; it must be more than 0s"),
        ("capture: {deadline: 1s2h}", "c.yaml:1: capture.deadline: '1s2h' must name its units once and from large to small, such as 1h30m"),
        ("capture: {deadline: soon}", "c.yaml:1: capture.deadline: 'soon' is not a duration such as 15s, 4m or 1h30m"),
        ("#" * (MAX_BYTES + 1), "c.yaml: is larger than 256 KiB"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(text: str | bytes, expected: str, tmp_path: Path) -> None:
    assert expected in problems(text, tmp_path)


def test_a_billion_laughs_costs_nothing(tmp_path: Path) -> None:
    lines = ["a: &a [x,x]"] + [
        f"{new}: &{new} [*{old},*{old}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert problems("\n".join(lines), tmp_path) == [
        "c.yaml:2: this is not YAML: aliases (*name) are not allowed"
    ]


def test_an_unreadable_file_is_a_sentence(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=reason):
            load_config(path)


@given(st.binary(max_size=300))
def test_no_bytes_end_in_a_traceback(data: bytes) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    with contextlib.suppress(ConfigError):
        load_config(Path(f"/proc/self/fd/{read_end}"))
    os.close(read_end)


class Inner(Section, frozen=True, kw_only=True):
    label: str = "x"


class Everything(Section, frozen=True, kw_only=True):
    flag: bool = False
    count: int = 1
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    size: Size | None = None
    timeout: Literal["auto"] | Annotated[Duration, msgspec.Meta(gt=0)] = "auto"
    names: tuple[str, ...] = ()
    named: dict[str, Inner] = {}
    lists: dict[str, tuple[int, ...]] = {}


def test_every_kind_of_field_can_be_read() -> None:
    text = "flag: yes\ncount: -3\nratio: 1\nsize: 1.5KiB\ntimeout: 4m\nnames: [no, 3.10, '']\nnamed: {a: {label: on}, b:}\nlists: {p: [1, 2]}"
    assert parse(text, "f", Everything) == Everything(
        flag=True, count=-3, ratio=1.0, size=1536, timeout=240.0, names=("no", "3.10", ""),
        named={"a": Inner(label="on"), "b": Inner()}, lists={"p": (1, 2)},
    )  # fmt: skip
    assert parse("size: null", "f", Everything).size is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flag: 1", "f:1: flag: '1' is not true or false"),
        ("count: 1.5", "f:1: count: '1.5' is not a whole number"),
        ("count: 1_000", "f:1: count: '1_000' is not a whole number"),
        ("ratio: .inf", "f:1: ratio: '.inf' is not a number"),
        ("ratio: 2", "f:1: ratio: 2 is too large; the largest is 1"),
        ("size: 20", "f:1: size: '20' is not a size such as 20GiB or null"),
        ("names: a", "f:1: names: must be a list"),
        ("names: [a,\n [b]]", "f:2: names[1]: must be a text"),
        ("named: {a: {lable: x}}", "f:1: named.a.lable: there is no such key; did you mean 'label'? legal here: label"),
        ("lists: {p: [1, x]}", "f:1: lists.p[1]: 'x' is not a whole number"),
    ],
)  # fmt: skip
def test_every_kind_of_field_can_be_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f", Everything)
    assert caught.value.problems == [problem]


durations = st.integers(1, 10**9).map(lambda milliseconds: milliseconds / 1000)
configs = st.builds(
    Config,
    agent=st.builds(
        AgentConfig, state_dir=st.sampled_from([Path("/a"), Path("/no"), Path("/ü b#: x")])
    ),
    capture=st.builds(
        CaptureConfig,
        py_spy=st.sampled_from(["auto", Path("/x")]),
        deadline=durations,
        native=st.sampled_from(["auto", "never", "always"]),
        watch=st.integers(0, 60_000).map(lambda milliseconds: milliseconds / 1000),
        workers=st.one_of(st.just("auto"), st.integers(1, 64)),
    ),
)


@given(configs)
def test_the_effective_config_reads_back_as_itself(config: Config) -> None:
    assert parse(effective_yaml(config), "printed", Config) == config


@given(durations)
def test_durations_round_trip(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(0, 10**14))
def test_sizes_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("15s", 15),
        ("4m", 240),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2d", 172800),
        ("20 s", 20),
        ("1 h 30 m", 5400),
        ("1h 30m", 5400),
    ],  # as our own pages print them
)
def test_durations_as_people_write_them(text: str, value: float) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1  s", " 1s", "1 s ", "1s1s", "1e3s", "\u0661s", "9" * 30 + "s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("uid", "environ", "expected"),
    [
        (0, {"HOME": "/root", "XDG_STATE_HOME": "/s"}, "/var/lib/mldebug"),
        (7, {"HOME": "/home/u", "XDG_STATE_HOME": "/s"}, "/s/mldebug"),
        (7, {"HOME": "/home/u", "XDG_STATE_HOME": "relative"}, "/home/u/.local/state/mldebug"),
        (7, {"HOME": "/home/u"}, "/home/u/.local/state/mldebug"),
        (7, {}, "/var/lib/mldebug"),
    ],
)
def test_where_state_lies_by_default(uid: int, environ: dict[str, str], expected: str) -> None:
    assert default_state_dir(environ, uid) == Path(expected)


def test_a_written_state_dir_is_obeyed_for_every_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert load_config(None).agent.state_dir == Path("/home/u/.local/state/mldebug")
    file = tmp_path / "c.yaml"
    file.write_text("agent: {state_dir: /var/lib/mldebug}")
    assert load_config(file).agent.state_dir == Path("/var/lib/mldebug")


def _leaves(section: Any) -> list[str]:
    return [field.name for field in msgspec.structs.fields(section)]


def test_print_shows_every_key() -> None:
    text = effective_yaml(Config())
    assert all(
        f"{name}:" in text
        for kind in (Config, AgentConfig, CaptureConfig)
        for name in _leaves(kind)
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fleet: {hub: 'http://hub01:9755'}", "is no https address"),
        ("fleet: {hub: 'https://'}", "names no host"),
        ("fleet: {hub: 'https://hub01/x'}", "has more than host and port"),
        ("fleet: {hub: 'https://me:secret@hub01'}", "has more than host and port"),
        ("fleet: {hub: 'https://hub01:99999'}", "is no address"),
        ("fleet: {hub: 'hub01', key_file: /k, certificate: /c, key: /d, ca: /e}", "are two ways"),
        ("fleet: {hub: 'hub01', certificate: /c}", "goes together with key and ca"),
        ("fleet: {events: 5}", "100"),
        ("hub: {pages_certificate: /c}", "goes together with pages_key"),
        ("hub: {database_password_file: /p}", "goes together with database"),
        ("hub: {key: /c}", "goes together with key and ca"),
        ("hub: {age: 1h}", "1d"),
    ],
)
def test_a_hub_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(file)


@pytest.mark.parametrize("hub", ["https://hub01:9755", "hub01", "hub01:1", "https://[::1]:9755"])
def test_a_hub_may_be_named_with_or_without_scheme_and_port(tmp_path: Path, hub: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"fleet: {{hub: '{hub}', key_file: /k, pages: 'http://127.0.0.1:9756'}}")
    assert load_config(file).fleet.hub == hub
