"""Where the GPU's time goes: how its work lies in the window, and what each gap waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.model import Capture, PassRecord
from orchestrator.tables import Table


def located(
    parts: Mapping[str, Sequence[Table]], captures: Sequence[Capture], passes: Sequence[PassRecord]
) -> dict[str, list[Table]]:
    """The tables `gpu_time`, and `gpu_gaps` with causes."""
    return {}
