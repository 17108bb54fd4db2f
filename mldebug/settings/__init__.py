"""Strict YAML: from text with line numbers to frozen structs, all problems at once."""
