"""A nightly as an entry of Slurm's scrontab: a job that is submitted anew every night. Printed, never installed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from orchestrator.errors import UsageError
from orchestrator.nights.words import Nightly


def entry(nightly: Nightly, argv: Sequence[str], variables: Mapping[str, str], wishes: str) -> str:
    """`wishes`: options of sbatch (--partition gpu --gpus 1). The job keeps what Slurm sets for it."""
    try:
        options = shlex.split(wishes)
    except ValueError as error:
        raise UsageError(f"--slurm {wishes!r}: {error}", "", "--slurm '--partition gpu --gpus 1'") from error
    words = ["/usr/bin/env", *(f"{name}={text}" for name, text in variables.items()), *argv]
    line = shlex.join(words)
    if any(sign in line + wishes for sign in "\n\r\0%"):
        raise UsageError("a line of a scrontab can't hold a line break or %", line, "use names without")
    minutes = [] if nightly.end_after_s is None else [f"--time={max(1, round(nightly.end_after_s / 60))}"]
    given = {option.partition("=")[0] for option in options}
    own = [f"--job-name=profrun-{nightly.name}", f"--chdir={nightly.cwd}", f"--output={nightly.output}/slurm-%j.log"]
    chosen = [word for word in (*own, *minutes) if word.partition("=")[0] not in given]
    return "\n".join(
        [
            f"# profrun: begin {nightly.name}",
            "# for scrontab -e; the nodes must see these paths as they are here",
            *(f"#SCRON {shlex.quote(word) if ' ' in word else word}" for word in chosen),
            *([f"#SCRON {wishes}"] if options else []),
            f"{' '.join(nightly.fields)} {line}",
            f"# profrun: end {nightly.name}",
            "",
        ]
    )
