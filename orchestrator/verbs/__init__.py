"""The verbs of the command line that look at reports rather than make one: a file each, with `options` and `run`."""
