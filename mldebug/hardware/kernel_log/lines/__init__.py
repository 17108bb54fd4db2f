"""Readers of single kernel lines, one file for each part of the kernel that speaks."""
