"""Runs in the training environment's Python (3.9 or newer) with the standard library and torch alone. Never imported by us.

`python .../probes/inside NAME JSON` calls `main(order)` of the file NAME. Lines of JSON on stdout are what it says.
"""
