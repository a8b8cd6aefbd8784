"""Which names and values are secret: the one list, for the redactor, for a job's environment and for the service's log.

A name in upper case is taken for an environment variable, and there a word such as `KEY` or `TOKEN` at the end means
a credential unless the word before it says otherwise (`EOS_TOKEN`). In lower case it is the other way round: a program
has many a `prompt_key` and `eos_token`, so a word of credentials must come before it.
"""

import re

# Wherever they stand in a name, in upper or lower case.
_ANYWHERE = (
    "password", "passwd", "passphrase", "passfile", "secret", "credential", "apikey", "api_key", "access_key",
    "private_key", "connection_string", "auth_config",
)  # fmt: skip
# At the end of a name, in upper or lower case.
_ENDS = ("auth", "cookie", "cookies", "dsn", "jwt", "webhook", "webhook_url")
_LAST = tuple(f"_{end}" for end in _ENDS)
# Whole names, in upper or lower case.
_ALONE = frozenset({*_ENDS, "token"} - {"auth"})
# What is named for an account with a cloud or a store of secrets is that account's.
_ACCOUNTS = ("AWS_", "AZURE_", "GCP_", "GOOGLE_", "VAULT_")

# In lower case: only after a word of credentials.
_LOWER = re.compile(
    r"(?:.*_)?(?:access|account|api|auth|bearer|bot|ci|client|csrf|deploy|gh|github|gitlab|hf|hub|id|jwt|npm|oauth|personal"
    r"|pypi|refresh|registry|session|slack|ssh|vault|wandb)_tokens?"
    r"|(?:.*_)?(?:account|auth|client|crypt|decryption|deploy|encryption|gpg|hmac|host|license|master|pgp|rsa|service"
    r"|session|shared|signing|ssh|storage|tls|webhook)_keys?"
    r"|(?:.*_)?(?:admin|basic|database|db|ftp|http|https|ldap|login|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|sudo"
    r"|user)_pass"
    r"|(?:.*_)?(?:ado|bitbucket|docker|gh|git|github|gitlab|hub)_pat"
)
# In upper case: unless one of these comes before it.
_UPPER = re.compile(r"(?:(?P<before>.*)_)?(?P<word>TOKENS?|KEY|PASS|PAT|AUTH)")
_HARMLESS_BEFORE = {
    "TOKEN": "AUDIO BOS CLS END EOS IMAGE LAST MASK MAX MIN NEW NUM PAD PER SEP SPECIAL START STOP UNK VIDEO",
    "TOKENS": (
        "BATCHED CACHED GENERATED INPUT MAX MIN NEW NUM OUTPUT PER PREFILL PROMPT RESPONSE SPECIAL STOP THINKING TOTAL"
    ),
    "KEY": (
        "AUDIO CACHE COLUMN DICT FN FOREIGN GROUP HASH IMAGE INDEX JSON LOOKUP MAP MESSAGES METRIC MODALITY"
        " PARTITION PRIMARY PROMPT PUBLIC RESPONSE REWARD SORT SOURCE TEACHER TOOLS VIDEO"
    ),
    "PASS": "BACKWARD BYPASS FIRST FORWARD MULTI ONE SECOND SINGLE",
}  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USER_OF_URL = re.compile(r"://(?!git@)([^/\s?#@]+)@")


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret: `HF_TOKEN` and `apiKey` do, `eos_token` does not."""
    words = _CAMEL.sub("_", name).replace("-", "_").replace(".", "_")
    lowered = words.lower()
    if words.startswith(_ACCOUNTS) or any(part in lowered for part in _ANYWHERE):
        return True
    if lowered in _ALONE or lowered.endswith(_LAST):
        return True
    if _LOWER.fullmatch(lowered):
        return True
    found = _UPPER.fullmatch(words)
    return found is not None and not _is_harmless(found["before"] or "", found["word"])


def is_secret(name: str, value: str) -> bool:
    """Whether a variable must stay with the machine: by its name, or by a web address in it that names a user."""
    return is_secret_name(name) or _USER_OF_URL.search(value) is not None


def secrets_in(name: str, value: str) -> tuple[str, ...]:
    """The texts of a variable that must not be shown, the longest first; empty for one that is not secret."""
    if not is_secret(name, value):
        return ()
    users = _USER_OF_URL.findall(value)
    passwords = [user.partition(":")[2] for user in users]
    return tuple(dict.fromkeys(text for text in (value, *users, *passwords) if text))


def _is_harmless(before: str, word: str) -> bool:
    known, spoken = _HARMLESS_BEFORE.get(word, "").split(), before.split("_")
    return any(part in known for part in spoken) if word == "TOKENS" else spoken[-1] in known
