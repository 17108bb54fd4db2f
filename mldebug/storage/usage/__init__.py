"""Who uses what below a directory: by user and by folder of a run, which checkpoints could go, and the words for it."""
