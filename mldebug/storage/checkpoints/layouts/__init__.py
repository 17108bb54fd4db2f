"""Layouts of checkpoints: one file for each way in which a job may lay one out."""
