"""`python -m orchestrator` is `profrun`."""

from orchestrator.cli import main

main()
