"""The command line: finds the verbs, prints, and turns errors into exit codes."""
