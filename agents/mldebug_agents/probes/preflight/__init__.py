"""What a node looks at before a job starts there, and how nodes meet to see whether they reach each other."""
