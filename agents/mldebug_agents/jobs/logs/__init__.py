"""The log files of a job: where its output goes, and following them as they grow."""
