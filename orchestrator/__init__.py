"""profrun: one profiling plan, one command, one report folder. As a library: `from orchestrator import load_report`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.report import load_report as load_report
else:

    def __getattr__(name: str) -> object:
        """Loads what reads reports only for those who ask for it: `profrun --help` must not wait for that."""
        if name != "load_report":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from orchestrator.report import load_report

        return load_report


__version__ = "0.1.0"
__all__ = ["__version__", "load_report"]
