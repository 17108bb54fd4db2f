"""NCCL RAS: parses its answers, and concludes which ranks have launched fewer collectives."""
