"""Tell credentials by their place: options and variables that take a secret, addresses with a login. Pure.

The values themselves are not known here, and no message holds one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from orl_core.errors import ConfigError

_LOGIN = re.compile(r"://[^/?#\s@]*:[^/?#\s@]+@")
_SCHEME = re.compile(r"\s*(bearer|basic)\s+\S{8}", re.IGNORECASE)  # the value of an Authorization header
_USER = re.compile(r"https?://[^/?#\s@]+@", re.IGNORECASE)  # a token alone may precede the `@`
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET = re.compile(
    r".*(secret|password|passwd|passphrase|passcode)s?|(db|user)pass|pwd|cred(ential)?s?|jwt|cookies?|dsn|otp|pw|webhook|connstr|(gh|github|gitlab|azure)?pat"
    r"|.*auth|authorization|bearer|(api|auth|access|secret|private|session|deploy|hf|hub)(key|token)s?"
)
# The last word of a name that takes a secret, and the words before it that say that it takes none.
_PLAIN = {
    "key": r"|input|output|label|reward|metadata|meta|tools?|prompt|response|answer|question|solution|text|messages?"
    r"|conversations?|chosen|rejected|images?|videos?|audios?|multimodal|data|dataset|group|score|weight|task|id|index"
    r"|sort|cache|routing|partition|public|query|metric|system|column|row|field|json|state|target|value|instance",
    "token": r"pad|padding|eos|bos|unk|mask|sep|cls|stop|eod|eot|eom|start|end|begin|image|video|audio|vision|box|think"
    r"|special|per|null|max|min|num|n|new|mtp|next|last|first|prompt|response|assistant|user|system|tool|call|reasoning"
    r"|input|output|draft|prefix|middle|suffix|newline|boi|eoi",
    "pass": r"n|num|forward|backward|first|second|single|multi|per|max|min|two|reward|k",
}
_KEYS = re.compile(r"api|access|secret|private|ssh|auth|hf|hub|wandb|openai|anthropic|aws")  # before `keys`, `tokens`
_NAMED = re.compile(
    r"""(?<![\w-])([A-Za-z][\w-]*)\\?["']?\s*[:=]\s*(?:\\?["'])?(?!(?:true|false|null|none)\b)[^\s"'\\,}\]]""", re.I
)


def takes_secret(name: str) -> bool:
    """Return whether an option or a variable of this name takes a secret: `--db-pass`, `HF_TOKEN`, `apiKey`.

    A `key` takes one unless it names a column, a `token` unless it is one of text, a `pass` unless it counts.
    """
    words = re.split(r"[\W_]+", _HUMP.sub("-", name).lower().strip("-_"))
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    if last in _PLAIN:
        return re.fullmatch(_PLAIN[last], before) is None
    if last in ("keys", "tokens"):
        return _KEYS.fullmatch(before) is not None
    return _SECRET.fullmatch(last) is not None


def _holds_secret(text: str) -> bool:
    """Return whether a value has a name with it that takes a secret: `HF_TOKEN=x`, `{"apiKey": "x"}`, a header."""
    return (
        has_login(text)
        or bool(_USER.search(text) or _SCHEME.match(text))
        or any(map(takes_secret, _NAMED.findall(text)))
    )


def has_login(text: str) -> bool:
    """Return whether `text` holds an address with a password: `http://user:pass@host`."""
    return _LOGIN.search(text) is not None


def credentials_among(settings: Mapping[str, object], flags: Mapping[str, object]) -> Iterator[str]:
    """Yield what is wrong with a trainer's settings and flags: a flag that takes a secret has a value, or a text holds
    an address with a login or such a flag. No message holds the value.
    """
    for flag, value in flags.items():
        name, attached, _ = flag.partition("=")
        if takes_secret(name) and (attached or not (value is None or isinstance(value, bool))):
            yield f"`flags` has {name}, which all could read: set its variable, such as WANDB_API_KEY"
    for name, value in {**settings, **flags}.items():
        if isinstance(value, str) and _holds_secret(value):
            yield f"`{name.partition('=')[0]}` holds a password or a key, which all could read: take it out"


def refuse_on_command_line(words: Sequence[str]) -> None:
    """Refuse arguments of a trainer that everyone could read in the process list and in summary.json.

    Raises:
        ConfigError: an option that takes a secret has a value, or a value holds an address with a login or such a name.
    """
    for word, following in zip(words, [*words, "--"][1:], strict=True):
        name, equals, value = word.partition("=")
        argument = value if equals else following
        if word.startswith("--") and takes_secret(name) and argument and not argument.startswith("--"):
            raise ConfigError(f"{name}: everyone could read it on a command line: use its variable, as WANDB_API_KEY")
        if _holds_secret(value if word.startswith("--") else word):
            where = name if equals and word.startswith("--") else "an argument"
            raise ConfigError(f"{where} holds a password or a key: take it out of the command line")
