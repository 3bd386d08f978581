"""What `profrun nightly` is made of: when a night comes, how it is judged, what is kept of it and what is told."""
