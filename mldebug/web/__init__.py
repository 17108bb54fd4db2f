"""What all web pages share: what they are built from, and how they become HTML."""
