"""Reports of incidents: as data, as HTML and as text."""
