"""The log files of a job: finds where its output goes, and follows the files as they grow."""
