"""What all web pages share: the data that they are built from, and how they become HTML."""
