"""Where the time of the program's threads goes, by state and place, in the steady steps and before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.model import Capture, PassRecord
from orchestrator.tables import Table


def located(
    parts: Mapping[str, Sequence[Table]], captures: Sequence[Capture], passes: Sequence[PassRecord]
) -> dict[str, list[Table]]:
    """The table `host_time`."""
    return {}
