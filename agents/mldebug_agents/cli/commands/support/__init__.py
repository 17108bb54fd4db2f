"""Help with mldebug itself: what works here, a bundle, a demo, an assistant: commands, one file each."""
