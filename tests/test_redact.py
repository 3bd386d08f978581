"""What may be secret must not be written, and what helps must not be hidden."""

from __future__ import annotations

import json

import pytest
import yaml

from orchestrator import redact
from orchestrator.plan import Plan
from orchestrator.planfile import plans


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "DB_PASS",
        "SLURM_JWT",
        "SENTRY_DSN",
        "OPENAI_KEY",
    ],
)
def test_secret_names(name: str) -> None:
    assert redact.is_secret_name(name)
    assert redact.environment({name: "x"}) == {name: redact.MASK}


@pytest.mark.parametrize(
    "name",
    ["PATH", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "TOKENIZERS_PARALLELISM", "SLURM_JOB_ID", "NCCL_DEBUG", "PWD"],
)
def test_harmless_names_are_shown(name: str) -> None:
    assert redact.environment({name: "value"}) == {name: "value"}


def test_unknown_names_are_hidden_unless_asked_for() -> None:
    env = {"MAIL": "a@b", "COMPASS_DIR": "/c", "MY_SETTING": "3", "PIP_INDEX_URL": "https://user:tok@host/simple"}
    shown = redact.environment(env, show=["MY_SETTING", "PIP_INDEX_URL"])
    assert shown["MAIL"] == shown["COMPASS_DIR"] == redact.HIDDEN
    assert shown["MY_SETTING"] == "3"
    assert shown["PIP_INDEX_URL"] == f"https://{redact.MASK}@host/simple"


def test_command_lines() -> None:
    words = ["train.py", "--api-key=abc", "--token", "zzz", "--lr", "0.1", "--max-tokens", "512", "--tokenizer", "bert"]
    mask = redact.MASK
    assert redact.argv(words) == (
        "train.py", f"--api-key={mask}", "--token", mask, "--lr", "0.1", "--max-tokens", "512", "--tokenizer", "bert"
    )  # fmt: skip
    assert redact.argv(["env", "HF_TOKEN=abc", "A=1"]) == ("env", f"HF_TOKEN={mask}", "A=1")
    assert redact.argv(["curl", "https://u:p@h/x?token=abc&a=1"]) == ("curl", f"https://{mask}@h/x?token={mask}&a=1")
    assert redact.argv(["--no-token", "next"]) == ("--no-token", "next")


@pytest.mark.parametrize(
    "secret",
    [
        "ghp_" + "a" * 30,
        "hf_" + "B" * 30,
        "sk-" + "c" * 30,
        "AKIA" + "D" * 16,
        "Bearer abcdefghijkl",
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_values_that_look_like_secrets(secret: str) -> None:
    assert secret not in redact.value(f"log: {secret}.")
    assert redact.MASK in redact.value(f"log: {secret}.")


def test_a_plan_with_a_set_of_sections_stays_a_plan() -> None:
    plan = "  set: basic\n  sections: []\n"
    assert redact.value(plan) == plan, "`basic sections` would be the form of an HTTP header, on one line"


def test_the_scrubber_finds_literal_values_also_inside_json() -> None:
    scrub = redact.scrubber({"MY_TOKEN": 'zqx-"7731"\tä', "OTHER": "harmless", "SHORT_KEY": "ab"})
    assert "7731" not in scrub('plain zqx-"7731"\tä end')
    assert "7731" not in scrub(json.dumps({"text": 'zqx-"7731"\tä'}, ensure_ascii=False))
    assert scrub("harmless ab") == "harmless ab"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"/bin/mysql", ["mysql", "--password=hunter 3", "-u"]', '"/bin/mysql", ["mysql", "--password=*", "-u"]'),
        ('["x", "--api-key", "ABC DEF", "--next"]', '["x", "--api-key", "*", "--next"]'),
        ('["x","--api-key","ABC","b"]', '["x","--api-key","*","b"]'),
        ('["AWS_SECRET_ACCESS_KEY=wJa/t=","PGPASSWORD=x","H=/r"]', '["AWS_SECRET_ACCESS_KEY=*","PGPASSWORD=*","H=/r"]'),
        ("/home/u/token=abc,d", "/home/u/token=*"),
        ("sh -c mysql --password hunter2 -u x", "sh -c mysql --password * -u x"),
        ("load --password=hunter2; go", "load --password=*; go"),
        ("env PGPASSWORD=123456 psql", "env PGPASSWORD=* psql"),
        ("url=x?a=b,password=abc", "url=x?a=b,password=*"),
        ("Server=db;Password=abc;Port=1", "Server=db;Password=*;Port=1"),
        ('connect(client_secret="a b", retries=3)', "connect(client_secret=*, retries=3)"),
        ("GET /x?token=abc&a=1", "GET /x?token=*&a=1"),
    ],
)  # fmt: skip
def test_secrets_inside_of_texts(text: str, shown: str) -> None:
    found = redact.in_text(text)
    assert found == shown.replace("*", redact.MASK) and redact.in_text(found) == found
    inside = json.loads(redact.in_text(json.dumps({"args": [text]}, indent=1)))
    assert inside == {"args": [shown.replace("*", redact.MASK)]}, "and as JSON writes it"
    assert redact.scrubber({})(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >()",
        "void cub::DeviceRadixSortOnesweepKernel<Policy, false, long, long, unsigned int, int, int>(KeyT const*)",
        "auto kernel(T, U) [with T = token; U = password; key = int; bool secret = true]",
        "std::enable_if<(N >= 4) && (token == 3), void>::type run(Key key=5)",
        "triton__0d1d2d3de BLOCK_M=64 NUM_KEYS=8 HAS_TOKEN=True MAX_NUM_TOKENS=131072",
        "prefill num_tokens=512 next_token=151643 tokens=[1, 2] key=a pass=forward",
        "<lambda> (train.py:12);token_embedding (model.py:3) 40",
        "self.key --verbose x",
        "operator==(Token const&, Token const&)",
        "--no-token next --max-tokens=5 --tokenizer bert --lr 0.1",
        "/etc/passwd O_RDONLY|O_CLOEXEC st_mode=S_IFREG|0644, st_size=10",
        '{"--tokenizer", "bert"}',
    ],
)
def test_names_and_code_stay_as_they_are(text: str) -> None:
    assert redact.in_text(text) == text


def test_a_plan_without_its_secrets_is_still_one() -> None:
    asked = {
        "version": 1,
        "target": {
            "before_each": ["sh", "-c", "export SESSION_KEY=abcdef123; true"],
            "command": ["x", "--token", "t0k"],
        },
        "environment": [{"use": "env", "set": {"HF_TOKEN": "hf_0123456789abcdef"}}],
        "collectors": [{"use": "timing"}],
    }
    scrub = redact.scrubber({"HF_TOKEN": "hf_0123456789abcdef"})
    text = plans.dump(Plan.model_validate(asked), lambda tree: redact.texts(tree, scrub))
    assert not [secret for secret in ("abcdef123", "t0k", "0123456789") if secret in text]
    again = Plan.model_validate(yaml.safe_load(text))
    assert again.environment[0].model_dump(by_alias=True)["set"] == {"HF_TOKEN": redact.MASK}
    assert again.target.before_each == ("sh", "-c", f"export SESSION_KEY={redact.MASK}; true")
