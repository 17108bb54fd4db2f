"""The screen of `mldebug top`: what it shows (`screen`), in columns (`columns`), and what keys do (`keys`). Pure: no terminal is touched."""
