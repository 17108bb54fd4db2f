"""Who is a rank, of which job, and who is missing: what `sources/ranks.py` is made of."""
