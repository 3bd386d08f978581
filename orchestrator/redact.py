"""What may be secret, and taking it out of everything that profrun itself writes: names, values, command lines, URLs.

The environment is shown by allow-list: an unknown variable's value is hidden, not guessed harmless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MASK = "[redacted]"
HIDDEN = "[hidden]"

_SECRET_NAME = re.compile(
    r"""(?:^|[_\-.])(?:pass(?:wd|word|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|ssh[_-]?key
    |signing[_-]?key|encryption[_-]?key|key|auth(?:orization)?|cred(?:ential)?s?|cookie|session(?:id)?|signature|dsn|jwt
    |bearer|webhook|license|conn(?:ection)?[_-]?str(?:ing)?|sas)(?:$|[_\-.\d])
    |password|passwd|secret|apikey|token|credential|privatekey""",
    re.I | re.X,
)
_NO_SECRET = re.compile(
    r"^(?:SLURM_(?:TOKEN_)?(?!JWT)\w*|PYTHONHASHSEED|TOKENIZERS_PARALLELISM|SSH_TTY|XDG_SESSION_(?:ID|TYPE|CLASS)"
    r"|NCCL_\w+|MAX_TOKENS?|KEYBOARD\w*|MONKEY\w*|PWD|OLDPWD)$",
    re.I,
)
_SHOWN = re.compile(
    r"""^(?:PATH|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|HOME|USER|LANG|LC_\w+|SHELL|TERM|TMPDIR|PWD|HOSTNAME|VIRTUAL_ENV
    |CONDA_PREFIX|CONDA_DEFAULT_ENV|CI|NO_COLOR
    |(?:CUDA|CUBLAS|CUDNN|NCCL|OMP|KMP|MKL|OPENBLAS|GOMP|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NVIDIA|HIP|ROCR|UCX|FI|GLOO
    |SLURM|OMPI|PMI|PMIX|MASTER|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|MALLOC|PYTHON\w*|XLA|JAX|NSYS
    |TF_(?:AUTOTUNE|CPP|CUDNN|DETERMINISTIC|DISABLE|ENABLE|FORCE|GPU|NUM|ONEDNN|USE|XLA)|NCU|TOKENIZERS|PROFRUN)(?:_\w+)?)$""",
    re.X,
)
_SECRET_VALUES = tuple(
    re.compile(pattern)
    for pattern in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"\bgh[pousr]_[A-Za-z0-9]{20,}",
        r"\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"\bglpat-[\w-]{20,}",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bsk-[A-Za-z0-9_-]{20,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\bAIza[\w-]{35}",
        r"\bxox[abprs]-[\w-]{10,}",
        r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
        r"\bpypi-[\w-]{20,}",
        r"\bnpm_[A-Za-z0-9]{30,}",
        r"(?i)\b(?:bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{8,}",
        r"(?<=://)[^/\s:@\"']*:[^@\s/\"']+(?=@)",
        r"(?i)(?<=[?&]sig=)[^&\s\"']+",
        r"(?i)(?<=[?&]key=)[^&\s\"']+",
        r"(?i)(?<=[?&]token=)[^&\s\"']+",
    )
)
_SECRET_FLAG = re.compile(
    r"(?i)^(--?(?:\w+[-_])*?(?:password|passwd|pass|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?"
    r"|auth)(?:[-_](?:key|token|file|value|id))?)(=(.*))?$"
)
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=(.+)$", re.S)
_GIVEN = re.compile(
    r"""(?P<quote>\\?["'])?(?<![\w-])"""
    r"""(?:(?P<name>-{0,2}[A-Za-z_][\w-]*)=|(?P<option>--?[A-Za-z][\w-]*)(?:(?P=quote),\s*(?P=quote)|[ \t]+)(?!-))"""
)
"""Where in a text a name gets its value: "NAME=value", "--flag", "value"; without quotes NAME=value, --flag value."""
_WORD = re.compile(r"""\\?"[^"]*"|'[^']*'|[^\s"'\\`;&)\]}=(\[{<][^\s"'\\`;&)\]}]*""")
_SECRET_WORD = re.compile(
    r"(?i)(?:password|passwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)$"
)
_PASSWORD = re.compile("(?i)pass|pwd|secret")
_NUMBER = re.compile(r"[-+]?[\d.]+|true|false|none|null|nullptr", re.I)
"""Of tokens there are also counts (`token=5`), of passwords none."""
_SHORTEST_SECRET = 6
"""Shorter values of secret-named variables are not looked for in texts: they would be found everywhere."""


def is_secret_name(name: str) -> bool:
    """Whether a variable of that name is taken for a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET.match(name)


def value(text: str) -> str:
    """The text without what looks like a key, a token, or a password in a URL."""
    for pattern in _SECRET_VALUES:
        text = pattern.sub(MASK, text)
    return text


def in_text(text: str) -> str:
    """The same, also without what is given to options and variables with a secret name: for what tools recorded."""
    text = value(text)
    if "=" not in text and "--" not in text and '"-' not in text:
        return text  # nearly every name of a function or kernel
    shown: list[str] = []
    at = 0
    for found in _GIVEN.finditer(text):
        if found.start() >= at and _takes_secret(found):
            end = _end_of_secret(text, found)
            shown += [text[at : found.end()], MASK] if end > found.end() else [text[at:end]]
            at = end
    return "".join((*shown, text[at:]))


def _takes_secret(found: re.Match[str]) -> bool:
    name = found["name"] or found["option"]
    if name.startswith("-"):
        alone = found["option"] and name.lower().startswith("--no-")
        return bool(_SECRET_FLAG.match(name)) and not alone
    return is_secret_name(name) if name.isupper() else bool(_SECRET_WORD.search(name))


def _end_of_secret(text: str, found: re.Match[str]) -> int:
    """Where the value ends; where it begins, if it is none or no secret."""
    begin, name, quote = found.end(), found["name"] or "-", found["quote"]
    if quote:
        end = text.find(quote, begin)
        end = len(text) if end < 0 else end
    else:
        word = _WORD.match(text, begin)
        end = word.end() if word else begin
    counts = _NUMBER.fullmatch(text, begin, end) and not name.startswith("-") and not _PASSWORD.search(name)
    return begin if counts or text.startswith(MASK, begin) else end


def environment(env: Mapping[str, str], show: Iterable[str] = ()) -> dict[str, str]:
    """The environment as it may be shown: values of known harmless names and of those in `show`, the others hidden."""
    extra = frozenset(show)
    return {name: _shown(name, text, extra) for name, text in sorted(env.items())}


def _shown(name: str, text: str, extra: frozenset[str]) -> str:
    if is_secret_name(name) and name not in extra:
        return MASK
    return value(text) if name in extra or _SHOWN.match(name) else HIDDEN


def tree(data: Any) -> Any:
    """JSON-able data with the values of secret-named keys masked, at any depth."""
    if isinstance(data, Mapping):
        return {k: MASK if is_secret_name(str(k)) and isinstance(v, str) else tree(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [tree(item) for item in data]
    return data


def argv(words: Iterable[str]) -> tuple[str, ...]:
    """A command line without the values of options such as --token X, --api-key=X and NAME=X with a secret name."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        flag, assignment = _SECRET_FLAG.match(word), _ASSIGNMENT.match(word)
        if hide_next and not word.startswith("-"):
            shown.append(MASK)
        elif flag and flag[2]:
            shown.append(f"{flag[1]}={MASK}")
        elif assignment and is_secret_name(assignment[1]):
            shown.append(f"{assignment[1]}={MASK}")
        else:
            shown.append(value(word))
        hide_next = bool(flag and not flag[2]) and not word.lower().startswith("--no-")
    return tuple(shown)


def texts(data: Any, scrub: Callable[[str], str]) -> Any:
    """JSON-able data with every text in it scrubbed, words of a command as such. What is made of it, such as YAML, is
    whole: a text that was scrubbed as it is written there would not be."""
    if isinstance(data, str):
        return scrub(data)
    if isinstance(data, Mapping):
        return {key: texts(item, scrub) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        words = argv(data) if all(isinstance(item, str) for item in data) else data
        return [texts(item, scrub) for item in words]
    return data


def scrubber(env: Mapping[str, str]) -> Callable[[str], str]:
    """A function that takes out of a text the literal values of the environment's secrets and what looks like one.

    Values are looked for as they stand and as JSON writes them."""
    secrets = {text for name, text in env.items() if is_secret_name(name) and len(text) >= _SHORTEST_SECRET}
    escaped = {json.dumps(text, ensure_ascii=ascii)[1:-1] for text in secrets for ascii in (True, False)}
    words = sorted(secrets | escaped, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, words))) if words else None

    def scrub(text: str) -> str:
        return in_text(pattern.sub(MASK, text) if pattern else text)

    return scrub
