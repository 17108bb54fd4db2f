"""The web pages, one file each: what a page shows, built from the last snapshot. Its template has the same name."""
