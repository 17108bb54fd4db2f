"""Plays a recorded node back: its GPUs and kernel log are judged and served as if they were here."""
