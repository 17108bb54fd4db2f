"""Plays a recorded node back: GPUs and kernel log as they were, judged and served as if they were here."""
