"""Two reports beside each other: whether they may be compared, what belongs together, what has changed, and why."""
