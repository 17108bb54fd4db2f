"""How full things are, how full they will be, and what is said about it: pure, of figures that others have read."""
