"""Which lines of a log cannot tell a step: settings that are listed, and lines whose like told nothing."""
