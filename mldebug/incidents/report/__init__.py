"""What people read: an incident written down as data, HTML and text."""
