"""Steps in files that frameworks write for people's charts: TensorBoard's events, wandb's offline file, CSV loggers' tables.

Same interface as `mldebug.jobs.logs.parser.LogParser`: bytes in any chunks go in, records come out, memory is bounded, nothing is
raised for what a file holds. What only an evaluation or a thread that measures the machine writes is no step: such a thread goes
on while the training hangs.
"""
