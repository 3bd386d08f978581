"""Whom and where a text tells of, taken out of it together with what may be secret: for what leaves the house.

Each person, host, address and GPU gets a name of its own, the same everywhere (`user-1`, `host-2`), so that ranks and
paths can still be told apart.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator import redact

LEFT_OUT = "[left out]"
"""Stands for the value of an environment variable."""
_SHORTEST_NAME = 3
"""A shorter name is taken for one only where it stands alone: `vm` is in too many words."""
_NOBODY = frozenset(
    re.findall(
        r"\S+",
        """root admin administrator user users guest test tester nobody daemon ubuntu debian centos fedora rocky
    ec2-user cloud-user azureuser opc vagrant docker jenkins runner runneradmin gitlab-runner github circleci travis
    buildkite jovyan vscode codespace app appuser dev developer build ci worker work ray mambauser micromamba slurm
    localhost local host hostname node server machine computer vm container docker-desktop none unknown
    home data main train model torch python nsys ncu py-spy strace perf monitor timing dumps profrun step steps ok bare
    warmup profiled high low cpu gpu cuda wall time samples name""",
    )
)
"""Names that tell of nobody, and words that mean something else in nearly every report."""
_NOWHERE = frozenset({"", "localhost", "none", "unknown"})
_HOMES = re.compile(r"(?<=/home/|Users[/\\])[^/\\\s:;,\"'<>()]+")
_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])")
_IP4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IP6 = re.compile(r"(?<![\w:.])(?:fe[89ab][0-9a-f]|f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):[0-9a-f:]*:[0-9a-f:]*", re.I)
"""Link-local, private and global ones; `c10::add` is no address."""
_GPU = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
_DOMAIN = r"(?:\.[a-z][a-z0-9-]*){2,}"
"""What makes a host's name a full one."""

_TELLS_SPEED = re.compile(
    r"""^(?:CUDA|CUBLAS|CUDNN|NCCL|OMP|KMP|MKL|OPENBLAS|GOMP|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NVIDIA|HIP|ROCR|UCX|FI
    |GLOO|MALLOC|XLA|JAX|TOKENIZERS|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK
    |TF_(?:AUTOTUNE|CPP|CUDNN|DETERMINISTIC|DISABLE|ENABLE|FORCE|GPU|NUM|ONEDNN|USE|XLA)
    |PYTHON(?!PATH|HOME|USERBASE|STARTUP)\w*)(?:_\w+)?$""",
    re.X,
)
"""Environment variables that a reader of figures wants; the others tell of places and people. Of TF_ not all: most of
those names are Terraform's."""
_URL_HOST = re.compile(
    r"(?<=://)(?:[^/\s@'\"]*@)?([A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z][A-Za-z0-9-]*)(?=[:/\s'\"]|$)"
)
"""With its domain; a bare name may be any word."""
_COMMAND_KEYS = frozenset({"command", "argv"})
_HOST_KEYS = frozenset({"host", "hostname", "host_name", "node", "nodename"})
_USER_KEYS = frozenset({"user", "username", "owner", "USER", "LOGNAME", "SUDO_USER"})
_VARIABLES = frozenset({"environment_variables", "environ", "env"})
ENV = "env"
"""The environment step that sets variables."""
_SET = frozenset({"set", "before", "verified", "during", "after"})
"""Where it has them, and its record."""


class Veil:
    """Texts without secrets, and without the names of people, hosts and addresses where `names` is set.

    env: the environment whose secrets are looked for by their values. hosts, users: names known beforehand; those in
    paths below a folder of homes are found on the way. hide: further texts to take out."""

    def __init__(
        self,
        env: Mapping[str, str],
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        hide: Iterable[str] = (),
        *,
        names: bool = True,
    ) -> None:
        self.taken: Counter[str] = Counter()
        """How many places of each kind were changed."""
        self._aliases: dict[tuple[str, str], str] = {}
        self._secrets = redact.scrubber(env)
        self._hidden = _words(hide)
        self._names = names
        alone = {name for name in hosts if not name.isdecimal() and name not in _NOWHERE}
        short = {name: name.partition(".")[0] for name in sorted(alone)}
        full = Counter(stem for name, stem in short.items() if stem != name)  # of two a short name could be either's
        one = {name: ("host", stem if stem in alone and full[stem] == 1 else name) for name, stem in short.items()}
        self._alone = one if names else {}
        known = {**{name: ("user", name) for name in sorted(set(users))}, **one}
        self._known = {name.lower(): what for name, what in known.items() if _tells(name)} if names else {}
        self._who = _whole_words(self._known)

    def __call__(self, text: str) -> str:
        clean = self._secrets(text)
        if clean != text:
            self.taken["secret"] += max(1, clean.count(redact.MASK) - text.count(redact.MASK))
        if self._hidden:
            clean, count = self._hidden.subn(redact.MASK, clean)
            self.taken["hidden text"] += count
        return self._anonymous(clean) if self._names else clean

    def _anonymous(self, text: str) -> str:
        if text in self._alone:
            return self._alias(*self._alone[text])
        if self._who:
            text = self._who.sub(lambda found: self._found(found), text)
        if "@" in text:
            text = _EMAIL.sub(lambda found: self._alias("e-mail address", found[0]), text)
        if "home/" in text or "Users" in text:
            text = _HOMES.sub(lambda found: self._person(found[0]), text)
        text = _GPU.sub(lambda found: self._alias("GPU", found[0].lower()), text)
        text = _MAC.sub(lambda found: self._alias("address", found[0].lower()), text)
        for pattern in (_IP4, _IP6):
            text = pattern.sub(lambda found: self._address(found[0]), text)
        return text

    def _found(self, found: re.Match[str]) -> str:
        """Case is folded further where it is looked for: a long s is an s there."""
        known = self._known.get(found[1].lower())
        return self._alias(*known) if known else found[0]

    def _person(self, name: str) -> str:
        return self._alias("user", name) if _tells(name) and not re.fullmatch(r"user-\d+", name) else name

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text
        return text if address.is_loopback or address.is_unspecified else self._alias("address", str(address))

    def _alias(self, kind: str, name: str) -> str:
        self.taken[kind] += 1
        known = self._aliases.get((kind, name))
        if known is None:
            number = 1 + sum(other == kind for other, _ in self._aliases)
            stem = "GPU-shared" if kind == "GPU" else kind.replace(" ", "-")
            known = self._aliases[kind, name] = f"{stem}-{number}"
        return known

    @property
    def different(self) -> Mapping[str, int]:
        """How many people, hosts, addresses ... were given another name."""
        return Counter(kind for kind, _ in self._aliases)

    def tree(self, data: Any) -> Any:
        """JSON-able data with every text changed, and without the environment variables that tell of places."""
        if isinstance(data, Mapping):
            is_env = data.get("use") == ENV
            return {self(key): self._item(str(key), value, is_env) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.tree(item) for item in (redact.argv(data) if _is_texts(data) else data)]
        return self(data) if isinstance(data, str) else data

    def _item(self, key: str, value: Any, is_env: bool) -> Any:
        """What stands under a key; is_env: of the step that sets variables, or of its record, which has the step as it
        was `wanted`."""
        if isinstance(value, Mapping):
            if is_env and key == "wanted":
                return {self(name): self._item(str(name), one, is_env) for name, one in value.items()}
            if key in _VARIABLES or (is_env and key in _SET):
                return self.variables(value)
        return self.tree(value)

    def variables(self, env: Mapping[str, Any]) -> dict[str, Any]:
        """Environment variables: those that say how fast a program may be, the others without their value."""
        shown = {}
        for name, value in env.items():
            keep = value is None or _TELLS_SPEED.match(name)
            self.taken["environment variable"] += not keep
            shown[name] = self.tree(value) if keep else LEFT_OUT
        return shown


def _is_texts(items: Sequence[Any]) -> bool:
    """Perhaps a command line, in which an option stands before its value."""
    return all(isinstance(item, str) for item in items)


def _tells(name: str) -> bool:
    return len(name) >= _SHORTEST_NAME and name.lower() not in _NOBODY and not name.isdecimal()


def _words(texts: Iterable[str]) -> re.Pattern[str] | None:
    longest_first = sorted({text for text in texts if text}, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first)), re.I) if longest_first else None


def _whole_words(names: Iterable[str]) -> re.Pattern[str] | None:
    """Those names where no letter or digit stands beside them, a host's with its domain."""
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    if not longest_first:
        return None
    either = "|".join(map(re.escape, longest_first))
    return re.compile(rf"(?<![A-Za-z0-9])({either})(?:{_DOMAIN})?(?![A-Za-z0-9])", re.I)


def told_of(data: Any) -> tuple[set[str], set[str]]:
    """The names of hosts and of users that a record tells: under keys of such names, in the addresses on a command
    line, and below folders of homes."""
    hosts: set[str] = set()
    users: set[str] = set()
    for key, text in _texts(data, ""):
        if key in _HOST_KEYS and " " not in text:
            hosts |= {text, text.partition(".")[0]}
        elif key in _USER_KEYS and " " not in text:
            users.add(text)
        if key in _COMMAND_KEYS:
            hosts |= set(_URL_HOST.findall(text))
        users |= set(_HOMES.findall(text))
    return hosts - {""}, {name for name in users if _tells(name)}


def _texts(data: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield from _texts(value, str(name))
    elif isinstance(data, (list, tuple)):
        for item in data:
            yield from _texts(item, key)
    elif isinstance(data, str):
        yield key, data
