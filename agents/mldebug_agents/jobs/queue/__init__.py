"""Asking schedulers at a calm pace, and looking for processes whose job is gone."""
