"""`mldebug doctor`: tries what works on this node for this user."""
