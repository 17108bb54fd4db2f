"""Reads the PyTorch Flight Recorders of ranks that lack mldebug's hook: by PyTorch's worker server,
a dump file, or the debug FIFO.
"""
