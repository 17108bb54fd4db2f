"""Reads a command as mldebug's own command line would, without running it."""

import re
import shlex

import click

from mldebug.cli.main import cli


def parse(command: str) -> click.Context:
    """The context in which the command would run. Raises what click raises where it cannot be typed so."""
    _, *words = shlex.split(re.sub(r"\{\{.*?\}\}", "x", command))
    # with the settings of the real one: click keeps the help option of the first context, for every later test
    context, group = cli.make_context("mldebug", []), cli
    while words:
        name, verb, words = group.resolve_command(context, words)
        assert verb
        if not isinstance(verb, click.Group):
            return verb.make_context(name, words, parent=context)
        group, context = verb, click.Context(verb, parent=context, info_name=name)
    raise click.MissingParameter("after the command", context, param_type="verb")
