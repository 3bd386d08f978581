"""A nightly as a pair of systemd units, for machines without cron: printed, never installed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import UsageError
from orchestrator.nights import schedule
from orchestrator.nights.words import Nightly


def units(nightly: Nightly, argv: Sequence[str], variables: Mapping[str, str], kill_after_s: float) -> str:
    """The two files, each below a line with its path. Raises UsageError for what they can't say."""
    try:
        when = schedule.calendar(nightly.fields)
    except ValueError as error:
        raise UsageError("systemd can't start it at these times", str(error)) from error
    stem = f"profrun-{nightly.name}"
    ends = "infinity" if nightly.end_after_s is None else f"{nightly.end_after_s:.0f}"
    place = Path("~/.config/systemd/user")
    return "\n".join(
        [
            f"# {place / stem}.service",
            "[Unit]",
            f"Description=profrun nightly {nightly.name}",
            "",
            "[Service]",
            "Type=oneshot",
            *(f"Environment={_word(f'{name}={text}')}" for name, text in variables.items()),
            f"ExecStart={' '.join(_word(word).replace('$', '$$') for word in argv)}",
            f"TimeoutStartSec={ends}",
            f"TimeoutStopSec={kill_after_s:.0f}",
            "",
            f"# {place / stem}.timer",
            "[Unit]",
            f"Description=profrun nightly {nightly.name}",
            "",
            "[Timer]",
            f"OnCalendar={when}",
            "AccuracySec=1s",
            "",
            "[Install]",
            "WantedBy=timers.target",
            "",
            f"# then: systemctl --user daemon-reload && systemctl --user enable --now {stem}.timer",
            "# and, to run while you are logged out: loginctl enable-linger",
            "",
        ]
    )


def _word(text: str) -> str:
    """A word in a unit file: % means something there, quotes hold spaces. ($ does in commands only.)"""
    if re.search(r"[\0\r\n]", text):
        raise UsageError("a unit file's line can't hold a line break", repr(text), "use names without one")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if re.fullmatch(r"[\w@%+=:,./$-]+", escaped) else f'"{escaped}"'
