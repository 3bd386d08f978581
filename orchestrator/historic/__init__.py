"""What the history of runs is made of: its words, its tables, what makes runs comparable, and when they changed."""
