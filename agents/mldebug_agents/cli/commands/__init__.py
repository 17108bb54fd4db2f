"""The commands of `mldebug` that read this node, one file each."""
