"""One file per group of metric families: `families` declares them, `samples(snapshot)` reads them off a snapshot."""
