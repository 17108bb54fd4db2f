"""From metrics to Prometheus text: declare metric families, collect their samples, keep to a budget of series, write the text."""
