"""Memory of the host, of cgroups and of ranks: how much the kernel cannot reclaim, how it grows, and when it is used up.

Pure.
"""
