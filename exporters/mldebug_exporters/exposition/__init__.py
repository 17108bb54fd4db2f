"""From families and samples to Prometheus text: declared, collected, held within a budget, written."""
