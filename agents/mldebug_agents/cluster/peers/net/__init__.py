"""How agents reach each other: proof of the key, connections, one request to one node or to many at once."""
