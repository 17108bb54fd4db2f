"""The agents of several nodes among themselves: how they prove the key, find who coordinates, and capture at one moment."""
