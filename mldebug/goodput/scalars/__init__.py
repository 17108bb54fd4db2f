"""The training figures of a run (loss, learning rate, throughput, …): their history, and the rules that find events in them."""
