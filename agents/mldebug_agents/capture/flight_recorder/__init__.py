"""Flight Recorders of ranks that the hook does not tell: who has which way, and what came by it."""
