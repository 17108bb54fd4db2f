"""How jobs end on this node: the exits as they happen, and the words that are left behind."""
