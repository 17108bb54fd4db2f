"""Nothing a job writes may move a cursor or show a key."""

import string
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.core.redact import HIDDEN, clean, redact, redact_argv, redact_source, safe_line

SECRET = "S3cr3t-Value/+x"
secrets = st.text(
    string.ascii_letters + string.digits + "+/_.!$%-", min_size=8, max_size=60
).filter(lambda value: any(letter.isalpha() for letter in value) and not value.startswith("--"))
names = st.sampled_from(
    [
        "WANDB_API_KEY", "HF_TOKEN", "password", "PASSWORD_PROD", "db.passwd", "aws_secret_access_key", "DB_PWD",
        "client-secret", "accessToken", "private_key", "MLFLOW_TRACKING_PASSWORD", "passphrase", "credentials",
        "OPENAI_KEY", "ANTHROPIC_KEY", "DB_PASS", "SMTP_PASS", "smtp-pass", "openai-key", "DB_PW", "PROXY_AUTH", "auth",
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;evil title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("never closed \x1b]0;text", "never closed 0;text"),
        ("\x9b31mred", "red"),
        ("\x1b(Bx\x1bc", "x"),
        ("a\tb\nc\r\nd", "a b c  d"),
        ("ab\u202egnp.exe\u2066", "abgnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("lone \udcff surrogate", "lone  surrogate"),
        ("nul\x00bell\x07del\x7f", "nulbelldel"),
        ("emoji 😀 and ünicode", "emoji 😀 and ünicode"),
        ("", ""),
    ],
)
def test_clean_keeps_the_words_and_nothing_else(text: str, expected: str) -> None:
    assert clean(text) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [(5, "abcde"), (4, "abc…"), (1, "…"), (0, ""), (-3, "")]
)
def test_clean_marks_where_it_cut(limit: int, expected: str) -> None:
    assert clean("abcde", limit) == expected


@given(st.text(st.characters(), max_size=400), st.integers(-1, 300))
def test_clean_is_printable_bounded_and_stable(text: str, limit: int) -> None:
    line = clean(text, limit)
    assert len(line) <= max(limit, 0)
    assert not [
        letter for letter in line if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
    ]
    assert not any(
        0x202A <= ord(letter) <= 0x202E or 0x2066 <= ord(letter) <= 0x2069 for letter in line
    )
    assert clean(line, limit) == line
    line.encode()


@pytest.mark.parametrize(
    "text",
    [
        f"WANDB_API_KEY={SECRET}",
        f"export HF_TOKEN='{SECRET} with spaces'",
        f'{{"password": "{SECRET}", "step": 3}}',
        f'{{\\"password\\": \\"{SECRET}\\"}}',
        f'{{"password": "with \\" {SECRET}"}}',
        f"password='cut off in the middle {SECRET}",
        f"--api-key {SECRET} --lr 3",
        f"--wandb-api-key={SECRET}",
        f"Authorization: Basic {SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' http://x",
        f"bearer {SECRET}",
        f"Cookie: session={SECRET}; a=b",
        f"https://user:{SECRET.replace('/', '')}@host/x",
        "https://S3cr3t-Value+x@host/x",
        f"postgres://u:p@{SECRET.replace('/', '')}@host/db",
        f"https://host/x?token={SECRET}&step=1",
        f"aws_secret_access_key = {SECRET}",
        f"client_secret:{SECRET}",
        f"password: 12345 {SECRET}".replace(f" {SECRET}", ""),
        f"--pass {SECRET} --lr 3",
        f"--pw={SECRET}",
        f"--openai-key {SECRET}",
        f"OPENAI_KEY={SECRET} DB_PASS={SECRET}",
        "AWS_SECRET_ACCESS_KEY wJalrXUtnFEMIK7MDENGValue",
        "the passphrase is hunter2Value",
        f'{{"auths": {{"registry": {{"auth": "{SECRET}"}}}}}}',
        f"https://a.blob.core.windows.net/c?sv=2020&sig={SECRET}&se=2026",
        f"https://b.s3.amazonaws.com/k?X-Amz-Signature={SECRET}&x=1",
        "https://hooks.slack.com/services/T0/B0/Value",
        "https://acme.webhook.office.com/webhookb2/aa-bb@cc/IncomingWebhook/Value/zz",
        "https://discord.com/api/webhooks/123/Value",
        "smtp:\n  password: |\n    hunter2 Value\n    Value\n  port: 25",
        "password: >-\n  Value",
    ],
)
def test_named_secrets_go(text: str) -> None:
    shown = redact(text)
    assert HIDDEN in shown
    assert "Value" not in shown
    assert "12345" not in shown


def test_a_key_of_wandb_goes_and_a_commit_stays() -> None:
    key = "0123456789abcdef" * 2 + "01234567"
    assert redact(f"wandb: logged in with {key}") == f"wandb: logged in with {HIDDEN}"
    assert redact(f"commit {key}") == f"commit {key}"


def test_a_block_ends_where_its_indent_does() -> None:
    text = "a:\n  password: |\n    one\n    two\n  port: 25\n"
    assert redact(text) == f"a:\n  password: {HIDDEN}\n  port: 25\n"


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "aB3" * 11,
        "AKIAIOSFODNN7EXAMPLE",
        "sk-proj-" + "x1" * 20,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1_B2" * 6,
        "glpat-" + "x" * 20,
        "xoxb-123456789012-abcdef",
        "nvapi-" + "q" * 40,
        "AIza" + "b" * 35,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIE cut off",
    ],
)
def test_known_shapes_go_without_a_name(secret: str) -> None:
    shown = redact(f"loaded {secret}")
    assert shown == f"loaded {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "tokens=1000 tokenizer=gpt2 max_tokens: 4096 tokens/s: 12.5 token_count=5",
        "TOKENIZERS_PARALLELISM=false",
        "pad_token_id=0, max-token=5)",
        "--token_file=/etc/mldebug/token --tokenizer-path /data/tok",
        "PWD=/home/u OLDPWD=/tmp",
        "KeyError: 'layer.0.weight'",
        "rank 3: step 10 loss=0.5 https://host:8080/path/x s3://bucket/key tcp://[::1]:29500",
        "basic optimisation passed",
        "File \"train.py\", line 3, in <module>",
        "user@host pkg@1.2.3",
        "key_padding_mask=None monkey=1 cache_key=abc sort_key: x num_keys=5 CACHE_KEY=abc primary_key=id",
        "passes=3 bypass=1 forward_pass=0.3 --forward-pass 3 --pass-rate 0.5 2 passed pw=300",
        "author: x, authors=3, auth_type=basic, unauthorized: 401",
        "WANDB_API_KEY is not set, HF_TOKEN missing; enter passphrase for key, password incorrect",
        "https://host/x?design=1&signal=9&assignature=2 http://hook/x https://github.com/pre-commit/pre-commit-hooks/x",
        "register_forward_hook(module), hooks: 3",
    ],
)  # fmt: skip
def test_what_a_training_log_needs_stays(text: str) -> None:
    assert redact(text) == text


def test_a_quoted_value_leaves_its_quotes_so_that_json_stays_json() -> None:
    assert redact('{"token": "abc", "x": 1}') == f'{{"token": "{HIDDEN}", "x": 1}}'


@given(names, secrets, st.sampled_from(["=", ": ", " = ", '="', "='", '": "', " => "]))
def test_no_secret_survives_its_name(name: str, secret: str, separator: str) -> None:
    closing = separator[-1] if separator[-1] in "\"'" else ""
    assert secret not in redact(f"x {name}{separator}{secret}{closing} y")


@given(st.text(st.characters(), max_size=300))
def test_redacting_twice_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_argv_hides_values_and_keeps_the_count() -> None:
    argv = [
        "train.py", "--api-key", SECRET, f"--token={SECRET} &more", f"wandb.api_key={SECRET}", "--tokenizer", "gpt2",
        "--lr", "3", "--max-token", "512", "--use-token", "--fp16", "--password", "123", "--hf-token",
    ]  # fmt: skip
    assert redact_argv(argv) == (
        "train.py", "--api-key", HIDDEN, f"--token={HIDDEN}", f"wandb.api_key={HIDDEN}", "--tokenizer", "gpt2",
        "--lr", "3", "--max-token", "512", "--use-token", "--fp16", "--password", HIDDEN, "--hf-token",
    )  # fmt: skip


def test_argv_looks_inside_a_shell_command() -> None:
    shown = redact_argv(["sh", "-c", f"cd /x; TOKEN={SECRET} torchrun train.py"])
    assert shown[2] == f"cd /x; TOKEN={HIDDEN} torchrun train.py"


@given(names, secrets, st.lists(st.text(max_size=20), max_size=5))
def test_argv_never_shows_the_value_of_a_secret_option(
    name: str, secret: str, rest: list[str]
) -> None:
    flag = "--" + name
    shown = redact_argv(["python", f"{flag}={secret}", flag, secret, *rest])
    assert len(shown) == 4 + len(rest)
    assert secret not in shown[1] + shown[3]


def test_safe_line_finds_a_secret_behind_colours_and_across_the_cut() -> None:
    assert SECRET not in safe_line(f"pass\x1b[1mword={SECRET}", 300)
    assert "user" not in safe_line("x" * 20 + " https://user:pw@host", 32)


SEEDS = [
    "a", "token=", "token='", 'password="', "--a-", "--token-a ", "://", "://@", "://a@", "eyJ", "eyJa.", "sk-",
    "auth", "_KEY ", "--pass ", "_PASS 1", "passphrase is ", "wandb", "wandb0123456789abcdef ", "://hook", "://hooks.",
    "://a/webhooks/", "/webhook", "?sig=", "password: |\n", "password: |\n  ", " ", "\n ", "a-key", "ssh-", "--pw",
    "hf_a ", "bearer ", "api_", "\x1b]", "\x1b[", "\x1bP", "-----BEGIN PRIVATE KEY-----", "cookie:", '\\"', "----",
]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_time_grows_with_the_text_and_no_faster(seed: str) -> None:
    small, large = (_seconds(seed, size) for size in (20_000, 200_000))
    assert large < max(40 * small, 0.5)  # ten times the text; a quadratic pattern takes a hundred


@pytest.mark.parametrize("seed", ["".join(SEEDS), "a", "://@"])
def test_one_line_of_a_megabyte_is_a_matter_of_seconds(seed: str) -> None:
    assert _seconds(seed, 1_000_000) < 5


def _seconds(seed: str, size: int) -> float:
    text = (seed * (size // len(seed) + 1))[:size]
    before = time.process_time()
    safe_line(text)
    redact_argv([text[start : start + 4000] for start in range(0, size, 4000)])
    return time.process_time() - before


@pytest.mark.parametrize(
    "lines",
    [
        ("password = \\", "    'hunter2'"),
        ('PASSWORD = ("hunter2"', '  "hunter2")'),
        ("token: str = 'hunter2'",),
        ('login(api_key=("hunter2 with \\" inside',),
        ('os.environ["HF_TOKEN"] = f"hunter2"',),
        ("secret = '''hunter2",),
        ("password =", "b'hunter2\\"),
    ],
)
def test_a_string_of_a_program_is_hidden_where_a_secret_is_named(lines: tuple[str, ...]) -> None:
    assert "hunter2" not in "\n".join(redact_source(lines))


def test_other_source_lines_stay() -> None:
    lines = ('tokenizer = load("gpt2")', 'sort(key="size")', 'x = "a"', "password = ask()", "", 'y = "b"')  # fmt: skip
    assert (*redact_source(lines),) == lines
