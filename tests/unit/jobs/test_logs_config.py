"""The `logs` section: formats of the user's, checked when the configuration is read, tried before the built-in ones."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from mldebug.cli.main import cli
from mldebug.config.schema import Config, effective_yaml, load_config
from mldebug.core.errors import ConfigError
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import create_all, load, names
from mldebug.jobs.logs.parser import PATIENCE, LogParser
from mldebug.jobs.logs.records import LogRecord
from mldebug_agents.agent.node_tools import open_tools

GOOD = r"""
logs:
  mine:
    kind: regex
    pattern: '^it=(?P<step>\d+) of (?P<total>\d+)'
  two: {kind: regex, patterns: ['(?P<loss>\S+) is the loss', 'took (?P<seconds>\S+) s']}
"""


def config(text: str, folder: Path) -> Config:
    file = folder / "c.yaml"
    file.write_text(text)
    return load_config(file)


def problems(text: str, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(text, folder)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def test_formats_are_named_by_their_key(tmp_path: Path) -> None:
    found = config(GOOD, tmp_path).logs
    assert list(found) == ["mine", "two"]
    assert [one.kind for one in found.values()] == ["regex", "regex"]
    assert found["mine"].options.pattern == r"^it=(?P<step>\d+) of (?P<total>\d+)"
    assert len(found["two"].options.patterns) == 2


def test_print_shows_it_and_reads_back_the_same(tmp_path: Path) -> None:
    first = config(GOOD, tmp_path)
    assert config(effective_yaml(first), tmp_path) == first
    (tmp_path / "c.yaml").write_text(GOOD)
    shown = CliRunner().invoke(cli, ["check-config", "--print", str(tmp_path / "c.yaml")])
    assert shown.exit_code == 0
    assert r"pattern: ^it=(?P<step>\d+) of (?P<total>\d+)" in shown.output
    assert "logs: {}" in effective_yaml(Config())


KINDS = ", ".join(sorted(names("logs")))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("m: {kind: regexp, pattern: x}", f"c.yaml:2: logs.m.kind: 'regexp' is no kind; choose from: {KINDS}"),
        ("m: {pattern: x}", f"c.yaml:2: logs.m: has no kind; write kind: with one of: {KINDS}"),
        ("m: 3", f"c.yaml:2: logs.m: has no kind; write kind: with one of: {KINDS}"),
        ("m: {kind: regex, kind: regex}", "c.yaml:2: logs.m.kind: stands here twice"),
        ("m: {kind: regex, patern: x}", "c.yaml:2: logs.m.patern: there is no such key; did you mean 'pattern'? legal here: kind, pattern, patterns"),
        ("m: {kind: plain, pattern: x}", "c.yaml:2: logs.m.pattern: there is no such key; legal here: kind"),
        ("m: {kind: regex}", "c.yaml:2: logs.m: has no pattern; write it like: 'step (?P<step>\\d+).* loss (?P<loss>\\S+)'"),
        ("m: {kind: regex, pattern: [x]}", "c.yaml:2: logs.m.pattern: must be a text"),
        ("'a b': {kind: plain}", "c.yaml:2: logs.a b: a name has letters, digits, - and _, and at most 40 of them"),
        ("m: {kind: regex, pattern: '(?P<step>'}", "c.yaml:2: logs.m.pattern: the pattern is no regular expression: missing ), unterminated subpattern at position 0"),
        ("m: {kind: regex, pattern: 'x'}", "c.yaml:2: logs.m.pattern: the pattern has no named group; name at least one of: step, total, loss, seconds"),
        ("m: {kind: regex, pattern: '(?P<stp>x)'}", "c.yaml:2: logs.m.pattern: the pattern has a group named 'stp'; the legal names are: step, total, loss, seconds"),
        ("m:\n    kind: regex\n    patterns:\n      - '(?P<step>x)'\n      - '(?P<step>(a+)+)'", "c.yaml:6: logs.m.patterns[1]: the pattern repeats something that itself repeats or chooses, which can take for ever"),
        (r'm: {kind: regex, pattern: "(?P<step>\d)"}', "c.yaml:2: this is not YAML: found unknown escape character 'd'; in \"…\" write each backslash twice, or use '…'"),
    ],
)  # fmt: skip
def test_a_problem_is_one_sentence_with_its_line(entry: str, problem: str, tmp_path: Path) -> None:
    assert problems(f"logs:\n  {entry}\n", tmp_path) == [problem]


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    text = "logs:\n  a: {kind: regex, pattern: '('}\n  b: {kind: x}\nstal: 1\n"
    assert [one.split(":")[1] for one in problems(text, tmp_path)] == ["2", "3", "4"]


def test_the_workbench_puts_them_before_the_built_in_formats(tmp_path: Path) -> None:
    text = r"logs: {mine: {kind: regex, pattern: 'step \d+ really (?P<step>\d+)'}}"
    with open_tools(config(text, tmp_path)) as tools:
        parser = tools.capture.log_parser()
        lines = b"step 1 really 100 loss 3\nstep 2 loss 2\n" * 2
        assert [(record.step, record.format) for record in parser.feed(lines)] == [
            (100, "mine"), (2, "plain"), (100, "mine"), (2, "plain"),
        ]  # fmt: skip
        assert tools.capture.log_parser() is not parser


def test_a_format_keeps_its_place_before_one_that_matched_later() -> None:
    """The built-in format of a log is moved to the front of the built-in ones, never before the user's."""
    own = load("logs", "regex")
    mine = own.create(own.Options(pattern=r"iteration +(?P<step>\d+)/.*tokens (?P<total>\d+)"))
    parser = LogParser(create_all("logs"), {"mine": mine})
    line = " iteration 7/ 9 | elapsed time per iteration (s): 1 | lm loss: 1 |"
    assert [it.format for it in parser.feed(f"{line}\n".encode())] == ["megatron_deepspeed"]
    assert [it.format for it in parser.feed(f"{line} tokens 5\n".encode())] == ["mine"]


class Slow:
    """A format whose every line costs what the clock says."""

    generic = False
    signs = ()

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.lines = 0.0, seconds, 0

    def clock(self) -> float:
        return self.now

    def parse(self, line: str) -> LogRecord | None:
        self.now += self.seconds
        self.lines += 1
        return LogRecord(step=int(line.split()[1]), format="x") if line.startswith("mine") else None


@pytest.mark.parametrize(("seconds", "aside"), [(0.02, True), (0.0005, False)])
def test_a_format_that_is_slow_on_this_log_is_put_aside_and_named(
    seconds: float, aside: bool
) -> None:
    slow = Slow(seconds)
    parser = LogParser(create_all("logs"), {"mine": slow}, slow.clock)
    parser.feed(b"mine 4\n" + b"chatter\n" * 5000)
    assert parser.slow == (("mine",) if aside else ())
    assert slow.lines in (range(20, round(PATIENCE / seconds) + 2) if aside else (5001,))
    assert [record.step for record in parser.feed(b"step 9 loss 1\n")] == [9]


def test_a_plugin_is_a_value() -> None:
    assert Plugin("plain", None) == Plugin("plain", None)
