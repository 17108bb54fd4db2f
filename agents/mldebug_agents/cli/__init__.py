"""The commands of `mldebug` that read this node, and shell completion."""
