"""Redaction: what must go, what must stay, and that the log's shape is kept at any chunking."""

import base64
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_e2e.core.text.redact import OVERLAP, WINDOW, Redactor, is_secret_name, redactor, secrets_in

GITHUB = "ghp_" + "a1B2c3D4e5F6" * 3
INSTALLATION = "ghs_1234567_eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiIxMjM0NTY3In0.c2lnbmF0dXJlLV9zaWduYXR1cmU"
HUGGING_FACE = "hf_" + "AbCdEfGhIj" * 3 + "KlMn"
HEX_KEY = "0123456789abcdef0123456789abcdef01234567"
KNOWN = "tuna-Sandwich!99"
KEY_LINES = [base64.b64encode(bytes((i * 7 + j) % 256 for j in range(48))).decode() for i in range(6)] + ["Qw=="]
PRIVATE_KEY = "\n".join(["-----BEGIN RSA PRIVATE KEY-----", *KEY_LINES, "-----END RSA PRIVATE KEY-----"])


def site() -> Redactor:
    return redactor(
        paths=[
            ("/home/ada", "$HOME"),
            ("/tmp", "$TMPDIR"),
            ("/home/ada/out", "$OUT"),
            ("/srv/bridge", "$BRIDGE"),
            ("/srv/bridge/3rdparty/Megatron-LM", "$MEGATRON_LM"),
            ("/", "$NEVER"),
        ],
        hosts=["gpu-17.cluster.example.org", "gpu-17", "ray", "localhost", "login-2"],
        addresses=["10.4.0.17", "127.0.0.1", "fd00::17"],
        secrets=[(KNOWN, "SITE_KEY"), ("short", "NO"), ("offlineonly", "WORD")],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd /home/ada/out/log", "cd $OUT/log"),
        ("HOME=/home/ada", "HOME=$HOME"),
        ("PYTHONPATH=/srv/bridge/src:/srv/bridge/3rdparty/Megatron-LM:/x", "PYTHONPATH=$BRIDGE/src:$MEGATRON_LM:/x"),
        ("'/home/ada'", "'$HOME'"),
        ("in /home/ada.", "in $HOME."),
        ("/home/ada/outer", "$HOME/outer"),
        ("/home/adam/x /home/ada-2 /home/ada.bak", "/home/adam/x /home/ada-2 /home/ada.bak"),
        ("/mnt/home/ada /var/tmp/x", "/mnt/home/ada /var/tmp/x"),
        ("file:///home/ada/x", "file://$HOME/x"),
        ("-I/home/ada/include", "-I$HOME/include"),
        ("\x1b[36m/home/ada/x\x1b[0m", "\x1b[36m$HOME/x\x1b[0m"),
        (r"'a\n/home/ada/x.py'", r"'a\n$HOME/x.py'"),
        ("/tmp/ray/session", "$TMPDIR/ray/session"),
        ("on gpu-17.cluster.example.org and gpu-17, login-2", "on host-1 and host-1, host-2"),
        ("gpu-170 xgpu-17 ray.init localhost", "gpu-170 xgpu-17 ray.init localhost"),
        ("(WorkerDict pid=7, ip=10.4.0.17)", "(WorkerDict pid=7, ip=ip-1)"),
        ("tcp://10.4.0.17:6379 10.4.0.170 110.4.0.17 127.0.0.1", "tcp://ip-1:6379 10.4.0.170 110.4.0.17 127.0.0.1"),
        ("[fd00::17]:80", "[ip-2]:80"),
        (f"x={KNOWN};", "x=<redacted:SITE_KEY>;"),
        ("too short for a secret, offlineonly", "too short for a secret, offlineonly"),
    ],
)
def test_known_values_become_placeholders_of_equal_meaning(text: str, expected: str) -> None:
    assert site().redact_text(text) == expected


@pytest.mark.parametrize(
    ("text", "secret", "kind"),
    [
        (f"token {GITHUB} used", GITHUB, "github_token"),
        (f"\x1b[36m{GITHUB}\x1b[0m", GITHUB, "github_token"),
        (f"got {INSTALLATION}.", INSTALLATION, "github_token"),
        ("x github_pat_11ABCDEFG0abcdefghij_klmnop y", "11ABCDEFG0abcdefghij", "github_token"),
        (f"hf auth {HUGGING_FACE}", HUGGING_FACE, "hf_token"),
        (f"wandb: Appending key for api.wandb.ai: {HEX_KEY}", HEX_KEY, "wandb_key"),
        (f"wandb login {HEX_KEY}", HEX_KEY, "wandb_key"),
        ("id AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE", "aws_key"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPx", "wJalrXUtnFEMI/K7MDENG/bPx", "secret"),
        ("Authorization: Bearer abc.def-ghi_jkl", "abc.def-ghi_jkl", "bearer"),
        ("'authorization': 'Basic dXNlcjpwYXNz'", "dXNlcjpwYXNz", "authorization"),
        ("https://ada:pa55word@example.org/x.git", "ada:pa55word", "userinfo"),
        ("https://sometoken@example.org/x.git", "sometoken", "userinfo"),
        ("export MY_SERVICE_TOKEN=abcdefgh", "abcdefgh", "token"),
        ("'hf_token': 'no-known-shape'", "no-known-shape", "token"),
        ('"password": "two words, three"', "two words, three", "password"),
        ("OPENAI_API_KEY='abc'", "abc", "secret"),
        ("OPENAI_API_KEY='abc", "abc", "secret"),
        ("PASSWORD=12345678", "12345678", "password"),
        ("curl --api-key 12345abc x", "12345abc", "secret"),
        ("apiKey=12345abc", "12345abc", "secret"),
        ("\x1b[33mapi_key\x1b[0m=\x1b[32m'12345abc'\x1b[0m", "12345abc", "secret"),
        ("sk-proj-abcdefghij0123456789klmn", "abcdefghij0123456789klmn", "api_key"),
        ("x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbg y", "eyJzdWIiOiIxIn0", "jwt"),
        (r"K='-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----'", "MIIabc", "private_key"),
    ],
)
def test_secrets_go_by_shape_or_by_name(text: str, secret: str, kind: str) -> None:
    redacted = site().redact_text(text)
    assert secret not in redacted
    assert f"<redacted:{kind}>" in redacted


@pytest.mark.parametrize(
    "text",
    [
        "ppo_max_token_len_per_gpu=2400",
        "rollout_corr/chi2_token:-0.9518 - perf/total_num_tokens:9716",
        "rollout_corr/chi2_token:np.float64(2.0)",
        "'eos_token': '<|im_end|>', 'pad_token': 'x', EOS_TOKEN=foo",
        "'api_key': None, 'hf_token': null, password=*** TOKEN=${HF_TOKEN}",
        "password=None) secret=True]",
        "hf_config_path=model hf_transformers_modules_are_cached",
        "highs_solver_options_presolve weights",
        f"commit {HEX_KEY}",
        "git+ssh://git@github.com/a/b",
        "http://127.0.0.1:8265 a@b",
        "task-management disk-0123456789012345678901234",
        "Fetching the secret ingredient",
        "max_key=3 state_key: 4 reward_fn_key=data_source",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert site().redact_text(text) == text


def test_a_private_key_of_several_lines_goes_and_other_processes_keep_theirs() -> None:
    lines = PRIVATE_KEY.split("\n")
    lines[1] = f"\x1b[36m(WorkerDict pid=12)\x1b[0m {lines[1]}"
    lines.insert(4, "(TaskRunner pid=9) step:1 - actor/loss:0.5")
    log = "\n".join(["before", *lines, "Done"])
    redacted = site().redact_text(log).split("\n")
    assert len(redacted) == log.count("\n") + 1
    assert redacted[0] == "before"
    assert redacted[1] == "-----BEGIN RSA PRIVATE KEY-----"
    assert redacted[2] == "\x1b[36m(WorkerDict pid=12)\x1b[0m <redacted:private_key>"
    assert redacted[5] == "(TaskRunner pid=9) step:1 - actor/loss:0.5"
    assert redacted[-1] == "Done"
    assert not any(line in "\n".join(redacted) for line in KEY_LINES)


def test_a_key_that_never_ends_stops_being_one() -> None:
    redacted = site().redact_text("-----BEGIN PRIVATE KEY-----\n" + "word\n" * 500)
    assert redacted.splitlines()[-1] == "word"


LOG = (
    f"+ HF_TOKEN={HUGGING_FACE}\r\n"
    "\x1b[36m(WorkerDict pid=12)\x1b[0m loading /home/ada/out/model\n"
    "\rTraining Progress:   0%|\rTraining Progress: 100%|██████████| 1/1\n"
    f"{PRIVATE_KEY}\n"
    f"https://x:{GITHUB}@github.com from 10.4.0.17 é\n"
    f"no end {KNOWN}"
).encode()


@settings(max_examples=40, database=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_chunks_make_no_difference(sizes: list[int]) -> None:
    stream = site().stream()
    parts, at = [], 0
    for size in sizes * len(LOG):
        if at >= len(LOG):
            break
        parts.append(stream.feed(LOG[at : at + size]))
        at += size
    assert b"".join(parts) + stream.finish() == site().redact_text(LOG.decode()).encode()


def test_lines_and_returns_keep_their_number_and_nothing_private_is_left() -> None:
    redacted = site().redact_text(LOG.decode()).encode()
    for mark in (b"\n", b"\r", b"\x1b["):
        assert redacted.count(mark) == LOG.count(mark)
    for value in (HUGGING_FACE, GITHUB, KNOWN, "/home/ada", "10.4.0.17", *KEY_LINES[:-1]):
        assert value.encode() not in redacted


@settings(max_examples=40, database=None)
@given(st.text(alphabet="aT_=:/ '\n\r\x1b[m0-9@h", max_size=60), st.sampled_from([LOG.decode(), GITHUB, "HF_TOKEN="]))
def test_redacting_twice_changes_nothing(noise: str, log: str) -> None:
    once = site().redact_text(noise + log)
    assert site().redact_text(once) == once
    assert once.count("\n") == (noise + log).count("\n")


@pytest.mark.parametrize("secret", [f"HF_TOKEN={HUGGING_FACE}", f"MY_TOKEN={KNOWN[:8]}zz", KNOWN, "/home/ada/x"])
@pytest.mark.parametrize("shift", range(-40, 8, 3))
def test_a_line_without_end_is_cut_only_where_no_secret_is(secret: str, shift: int) -> None:
    stream = site().stream()
    padding = b"." * (WINDOW + 1 - OVERLAP + shift) + b" "
    line = padding + secret.encode() + b" "
    written = stream.feed(line + b"." * (WINDOW + 1 - len(line)))
    assert written
    written += stream.feed(b"." * WINDOW) + stream.finish()
    assert secret.rpartition("=")[2].encode() not in written
    assert b"." * 4000 + b" " in written


def test_memory_is_bounded_by_the_window() -> None:
    stream = site().stream()
    held = 0
    for _ in range(64):
        held += 65536 - len(stream.feed(b"x" * 65536))
        assert held <= WINDOW + 65536


def test_documents_are_redacted_in_values_and_keys() -> None:
    document = {
        "/home/ada/x": ["/tmp/y", {"HF_TOKEN": "anything", "n": 3, "none": None}],
        "API_KEY": "None",
        "process": ("A=1", KNOWN),
    }
    assert site().redact_document(document) == {
        "$HOME/x": ["$TMPDIR/y", {"HF_TOKEN": "<redacted:token>", "n": 3, "none": None}],
        "API_KEY": "None",
        "process": ["A=1", "<redacted:SITE_KEY>"],
    }


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("HUGGING_FACE_HUB_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("aws_secret_access_key", True),
        ("dbPassword", True),
        ("eos_token", False),
        ("PAD_TOKEN", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("max_tokens", False),
        ("reward_fn_key", False),
    ],
)
def test_names_tell_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


LONG = 240 * 1024
# What was quadratic, or looks as if it were: one line that begins many matches and ends none.
COSTLY_LINES = {
    "names": b"_token",
    "names with a value in a value": b"_token=",
    "names with harmless values": b"_token={",
    "quoted names": b"'token': '_token=",
    "closing brackets": b"_token=)",
    "spaces": b"token  ",
    "colours": b"token\x1b[0m",
    "web tokens": b"eyJ",
    "web tokens with short ends": b"eyJhbGciOiJS.x-",
    "web tokens in one word": b"eyJabcdefgh",
    "key beginnings": b"-----BEGIN RSA PRIVATE KEY-----",
    "key ends": b"-----END RSA PRIVATE KEY-----",
    "wandb": b"wandb key ",
    "wandb keys": b"wandbkeykeykeykeykeykeykey012345678901234567890123456789012345678",
    "addresses": b"://a",
    "authorizations": b"authorization: a ",
    "installations": b"ghs_1_eyJ.",
    "bearers": b"bearer ",
    "dashes": b"sk-",
}


@pytest.mark.slow
@pytest.mark.parametrize("unit", COSTLY_LINES.values(), ids=COSTLY_LINES)
def test_no_line_takes_more_than_linear_time(unit: bytes) -> None:
    line = unit * (LONG // len(unit))
    for tail in (b"", b"x\n", b"))))\n"):
        began = time.process_time()
        stream = site().stream()
        stream.feed(line + tail)
        stream.finish()
        # The quadratic ones took minutes; these take some hundredths of a second.
        assert time.process_time() - began < 8


@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"+", b"+A", b"A", b" ", b"\x1b[0m"])
def test_no_line_of_a_key_takes_more_than_linear_time(unit: bytes) -> None:
    stream = site().stream()
    stream.feed(b"-----BEGIN PRIVATE KEY-----\n")
    began = time.process_time()
    stream.feed(unit * (LONG // len(unit)) + b"!\n")
    assert time.process_time() - began < 8


def test_a_secret_of_any_length_goes_whole() -> None:
    long = "a1B2" * 5_000
    assert site().redact_text(f"HF_TOKEN={long} x") == "HF_TOKEN=<redacted:token> x"
    assert site().redact_text(f"'password': '{long} {long}' x") == "'password': '<redacted:password>' x"
    token = f"eyJ{long}.eyJ{long}.{long}"
    assert site().redact_text(f"\x1b[32m{token}\x1b[0m") == "\x1b[32m<redacted:jwt>\x1b[0m"


def test_keys_on_one_line_go_one_by_one() -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    text = f"a {begin}MII{end} b {begin}MIJ{end} c {begin}\n"
    hidden = f"{begin}<redacted:private_key>{end}"
    assert site().redact_text(text) == f"a {hidden} b {hidden} c {begin}\n"


@pytest.mark.parametrize(
    ("name", "value", "texts"),
    (
        ("EOS_TOKEN", "</s>", ()),
        ("AWS_REGION", "eu-1", ("eu-1",)),
        ("HF_TOKEN", "abc", ("abc",)),
        ("COOKIE", "abc", ("abc",)),
        ("token", "abc", ("abc",)),
        ("db_pass", "abc", ("abc",)),
        ("PROXY", "http://ann:pass@host/", ("http://ann:pass@host/", "ann:pass", "pass")),
        ("PROXY", "http://ann@host/", ("http://ann@host/", "ann")),
        ("REMOTE", "ssh://git@host/x", ()),
        ("MAX_NEW_TOKENS", "5", ()),
    ),
)
def test_the_texts_of_a_variable_that_must_not_be_shown(name: str, value: str, texts: tuple[str, ...]) -> None:
    assert secrets_in(name, value) == texts
