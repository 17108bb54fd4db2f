"""`mldebug doctor`: what works on this node as this user, tried one by one."""
