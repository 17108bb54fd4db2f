"""One file per metric family group: `families(snapshot)` yields Prometheus families."""
