"""The kernel's log: its lines, the events in them, what Xids (NVIDIA's error numbers) mean, and which ranks they concern.

Pure.
"""
