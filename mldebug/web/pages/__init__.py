"""The web pages, one file each: what a page shows, built from the last snapshot. Its template has the same name."""

from mldebug.web.page import WebPage

__all__ = ["WebPage"]
