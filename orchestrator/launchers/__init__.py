"""Launchers of the ranks of a job: one file each, and `detect`, which sees one in a command."""
