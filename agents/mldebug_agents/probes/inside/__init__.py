"""Scripts that run in the training environment's Python (3.9 or newer) with the standard library and torch alone. Never imported by
us.

`python .../probes/inside NAME JSON` calls `main(order)` of the file NAME. They report events as lines of JSON on stdout; `beat` is
a sign of life.
"""
