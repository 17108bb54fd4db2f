"""Log formats, one file each: from one line to a progress record."""

from mldebug.jobs.logs.records import LogFormat

__all__ = ["LogFormat"]
