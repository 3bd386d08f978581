"""profrun: one profiling plan, one command, one report folder."""

__version__ = "0.1.0"
