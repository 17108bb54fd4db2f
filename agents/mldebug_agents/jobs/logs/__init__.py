"""The logs of a job: where a rank writes to, and what is new there."""
