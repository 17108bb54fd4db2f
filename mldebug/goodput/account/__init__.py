"""The account of GPU time: of an attempt, of a whole job, how it is shown, and the summary of an attempt that has ended."""
