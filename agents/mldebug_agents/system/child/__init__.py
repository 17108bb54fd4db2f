"""The helper process and the reader child behind `spawn.py` and `reader.py`; nobody else imports from here."""
