"""How agents reach each other: proof of the key, connections, one question or one order to many nodes at once."""
