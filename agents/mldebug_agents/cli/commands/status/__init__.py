"""The jobs of this node now, once and live: commands, one file each."""
