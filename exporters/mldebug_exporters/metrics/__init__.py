"""One file per group of metric families: `families` declares them, `samples(snapshot)` reads them off a snapshot."""

from mldebug_exporters.exposition.families import MetricGroup

__all__ = ["MetricGroup"]
