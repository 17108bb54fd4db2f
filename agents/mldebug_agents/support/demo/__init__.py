"""`mldebug demo`: a real job that hangs on purpose."""
