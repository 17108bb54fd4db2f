"""What a job wrote before it ended: whose lines they are, which error they end with, and whom they accuse. Pure."""
