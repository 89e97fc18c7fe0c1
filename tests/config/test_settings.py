"""Settings: their sources, the order in which sources win, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.config import database_url
from outlive.config.load import load
from outlive.config.network import is_loopback
from outlive.config.settings import FIELDS, OPTIONS, Settings
from outlive.core.errors import SettingsError
from outlive.core.requests.checks import Limits
from tests.support.certificates import Authority


def load_toml(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    file = tmp_path / "outlive.toml"
    file.write_text(text)
    return load({"config": str(file), **flags}, environ or {})


def error_of(flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags or {}, environ or {})
    return caught.value.message


def toml_error_of(tmp_path: Path, text: str, environ: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load_toml(tmp_path, text, environ, **flags)
    return caught.value.message.replace(str(tmp_path / "outlive.toml"), "FILE")


# -- sources


def test_no_sources_give_the_defaults() -> None:
    assert load({}, {}) == Settings()


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    text = 'port = 1\nhost = "127.0.0.2"\ngrace_seconds = 1\n'
    settings = load_toml(tmp_path, text, {"OUTLIVE_PORT": "2", "OUTLIVE_HOST": "127.0.0.3"}, port="3")
    assert (settings.port, settings.host, settings.grace_seconds) == (3, "127.0.0.3", 1.0)
    assert settings.max_running == Settings().max_running


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text("port = 9")
    assert load({}, {"OUTLIVE_CONFIG": str(file)}).port == 9


def test_every_setting_can_be_given() -> None:
    assert set(FIELDS) == {*Settings.__struct_fields__, *Limits.__struct_fields__} - {"limits"}
    for option in OPTIONS.values():
        # `seal_keys` are given as `seal_key` or `seal_key_file`.
        assert option.flag or option.variable or option.table is not None or option.name == "seal_keys"


BAD_DATABASE = (
    "The database must be written sqlite:///FILE, or sqlite:////FOLDER/FILE for a full path, "
    "or postgresql://USER@HOST/NAME."
)

SAMPLES: dict[str, tuple[str, object]] = {
    "host": ("::1", "::1"),
    "database": ("sqlite:///other.db", "sqlite:///other.db"),
    "root_path": ("/some/path", "/some/path"),
    "console": ("no", False),
    "lenient_chat": ("yes", True),
    "offer_tools": ("yes", True),
    "require_keys": ("yes", True),
    "admin_reads_content": ("yes", True),
    "mcp_private": ("yes", True),
    "mcp_proxy": ("yes", True),
    "mcp_requests": ("off", "off"),
    "webhook_private": ("yes", True),
    "webhook_proxy": ("yes", True),
    "currency": ("EUR", "EUR"),
    "metrics_owners": ("yes", True),
    "processes": ("1", 1),
    "log_level": ("debug", "debug"),
    "security_log": ("security.log", "security.log"),
    "log_format": ("json", "json"),
    "event_names": ("open-responses", "open-responses"),
    "role": ("all", "all"),
    "response_days": ("never", None),
    "conversation_days": ("1.5", 1.5),
    "abandon_after": ("30", 30.0),
}


SCALARS = [name for name, option in FIELDS.items() if option.is_plain and option.type != list[str]]


@pytest.mark.parametrize("name", SCALARS)
def test_every_scalar_can_be_given_as_variable_and_as_flag(name: str) -> None:
    text, value = SAMPLES.get(name, ("7", 7))
    for settings in (load({}, {f"OUTLIVE_{name.upper()}": text}), load({name: text}, {})):
        holder = settings.limits if name in Limits.__struct_fields__ else settings
        assert getattr(holder, name) == value


def test_all_tables_of_the_file_are_read(tmp_path: Path) -> None:
    settings = load_toml(
        tmp_path,
        """
        host = "0.0.0.0"
        cors_origins = ["https://App.example.com/", "http://localhost:3000"]
        conversation_days = "never"
        lenient_chat = true
        [limits]
        max_items = 5
        max_running = 6
        [keys]
        alice = "alice-key"
        bob = ["bob-key-old", { env = "BOB_NEW" }]
        carol = "env:CAROL"
        [upstreams.here]
        url = "http://localhost:8000/v1/"
        """,
        {"BOB_NEW": "bob-key-new", "CAROL": "carol-key"},
    )
    assert settings.cors_origins == ["https://app.example.com", "http://localhost:3000"]
    assert settings.keys == {"alice": ["alice-key"], "bob": ["bob-key-old", "bob-key-new"], "carol": ["carol-key"]}
    assert (settings.limits.max_items, settings.max_running, settings.lenient_chat) == (5, 6, True)
    assert [upstream.url for upstream in settings.upstreams] == ["http://localhost:8000/v1"]


def test_keys_can_be_given_in_the_environment() -> None:
    settings = load({}, {"OUTLIVE_API_KEYS": "alice=a-1, bob=env:BOB,alice=a-2=x", "BOB": "b"})
    assert settings.keys == {"alice": ["a-1", "a-2=x"], "bob": ["b"]}


def test_keys_from_flags_replace_those_of_the_file(tmp_path: Path) -> None:
    settings = load_toml(tmp_path, '[keys]\nold = "x"', keys=["new=long-key", "new=long-key"], host="0.0.0.0")
    assert settings.keys == {"new": ["long-key"]}


def test_a_short_key_is_refused_where_others_can_try_it_and_warned_of_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert "others can guess it" in error_of({"keys": ["alice=1"], "host": "0.0.0.0"})
    assert load({"keys": ["alice=12345"]}, {}).keys == {"alice": ["12345"]}
    assert caplog.messages == ["A key of alice has only 5 characters: draw 32 at random."]
    load({"keys": ["alice=" + "a" * 16], "host": "0.0.0.0"}, {})
    assert len(caplog.messages) == 1


def test_a_key_file_that_others_can_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "key"
    path.write_text("k" * 40)
    for mode, warnings in ((0o600, 0), (0o644, 1)):
        path.chmod(mode)
        load({"seal_key_file": str(path)}, {})
        assert len(caplog.messages) == warnings


def test_cors_origins_can_be_given_in_the_environment() -> None:
    assert load({}, {"OUTLIVE_CORS_ORIGINS": "https://a.example, https://b.example"}).cors_origins == [
        "https://a.example",
        "https://b.example",
    ]


def test_empty_variables_count_as_not_set() -> None:
    assert load({}, {"OUTLIVE_PORT": "", "OUTLIVE_API_KEYS": " "}) == Settings()


def test_variables_that_kubernetes_sets_are_ignored() -> None:
    environ = {"OUTLIVE_PORT": "tcp://10.0.0.1:7878", "OUTLIVE_SERVICE_HOST": "10.0.0.1", "OUTLIVE_PORT_7878_TCP": "x"}
    assert load({}, environ) == Settings()


def test_ipv6_addresses_lose_their_brackets() -> None:
    assert load({"host": "[::1]"}, {}).host == "::1"


def test_the_database_path_is_the_file() -> None:
    assert database_url.path_of("sqlite:////var/lib/o.db") == Path("/var/lib/o.db")
    assert database_url.path_of(Settings().database) == Path("outlive.db")


def test_the_repr_of_settings_contains_no_secret(tmp_path: Path) -> None:
    settings = load_toml(
        tmp_path,
        """
        [keys]
        alice = "s3cret-a"
        [upstreams.x]
        url = "http://localhost/v1?sig=s3cret-b"
        key = "s3cret-c"
        headers = { x-other = "s3cret-d" }
        """,
    )
    assert "s3cret" not in repr(settings) + str(settings)
    assert settings.upstreams[0].query == {"sig": "s3cret-b"}


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("LocalHost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_recognised(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer
    assert not is_loopback("example.com")


# -- errors

CHOOSE = "choose with --upstream URL, or set key in [upstreams.NAME]."


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"port": "70000"}, "--port must be a whole number from 0 to 65535, not '70000'."),
        ({"port": "seven"}, "--port must be a whole number from 0 to 65535, not 'seven'."),
        ({"port": "7.5"}, "--port must be a whole number from 0 to 65535, not '7.5'."),
        ({"commit_ms": "-1"}, "--commit-ms must be a number from 0 to 1000, not '-1'."),
        ({"grace_seconds": "inf"}, "--grace-seconds must be a number of 0 or more, not 'inf'."),
        ({"sweep_seconds": "0"}, "--sweep-seconds must be a number above 0, not '0'."),
        ({"response_days": "0"}, "--response-days must be a number above 0, or \"never\", not '0'."),
        ({"log_level": "loud"}, "--log-level must be one of debug, info, warning, error, not 'loud'."),
        ({"host": " "}, "--host must be text, not ' '."),
        (
            {"host": "0.0.0.0"},
            (
                "Without keys the server listens on this machine only, not on 0.0.0.0; "
                "give --api-key NAME=KEY to let others in."
            ),
        ),
        (
            {"cors_origins": ["*"]},
            (
                "Without keys the CORS origin * would let any web page drive the server; "
                "name the origins, or give --api-key NAME=KEY."
            ),
        ),
        (
            {"cors_origins": ["https://a.example/path"]},
            "--cors-origin must be an origin such as https://app.example.com, or *; not 'https://a.example/path'.",
        ),
        ({"keys": ["s3cret"]}, "--api-key must be written NAME=KEY, such as alice=env:ALICE_KEY."),
        (
            {"keys": ["a b=k"]},
            "The owner's name in --api-key may hold only letters, digits, '_', '.', '@', '-'.",
        ),
        ({"keys": ["alice=two words"]}, "The key of alice (--api-key) must not hold a space."),
        (
            {"keys": ["alice="]},
            "The key of alice (--api-key) is empty or holds characters that cannot be sent in an HTTP header.",
        ),
        (
            {"keys": ["alice=env:NOT_SET"]},
            "The key of alice (--api-key) names the environment variable NOT_SET, which is not set.",
        ),
        ({"keys": ["alice=k", "bob=k"]}, "alice and bob have the same key; every owner needs a key of his own."),
        (
            {"database": "postgresql+asyncpg://user:s3cret@host/db"},
            "The database must be written postgresql://USER@HOST/NAME, without a driver's name.",
        ),
        ({"database": "postgresql://"}, "The database must be written postgresql://USER@HOST/NAME."),
        ({"database": "outlive.db"}, BAD_DATABASE),
        ({"database": "sqlite:///:memory:"}, BAD_DATABASE),
        (
            {"role": "api"},
            ("The role api needs a database that nodes can share; give --database postgresql://USER@HOST/NAME."),
        ),
        (
            {"database": "sqlite:///no/such/folder/o.db"},
            "The folder no/such/folder for the database does not exist; create it, or choose another file.",
        ),
        ({"config": "nowhere.toml"}, "The settings file nowhere.toml cannot be read: No such file or directory."),
        (
            {"upstream": "opnai"},
            (
                "--upstream must be a URL such as http://localhost:8000/v1, or one of openai, anthropic, gemini, "
                "openrouter, ollama, vllm, llamacpp, lmstudio; not 'opnai'."
            ),
        ),
        ({"upstream": "ftp://x/v1"}, "--upstream must be a URL such as http://localhost:8000/v1."),
        ({"upstream": "http://x:99999/v1"}, "--upstream must be a URL such as http://localhost:8000/v1."),
        ({"upstream": "http:///v1"}, "--upstream must be a URL such as http://localhost:8000/v1."),
        (
            {"upstream": "https://me:s3cret@x/v1"},
            "--upstream holds a user name or password; give it as key or headers instead.",
        ),
        (
            {"upstream": "http://x/v1/chat/completions"},
            "--upstream must be the base URL, without /chat/completions.",
        ),
        (
            {"upstream": "azure"},
            (
                "The upstream azure has no address: give its url, https://NAME.openai.azure.com/openai/v1 "
                "(a dated API version goes in query.api-version)."
            ),
        ),
        (
            {"upstream": "openai"},
            (
                "The upstream openai needs a key: set OPENAI_API_KEY, give --upstream-key-file FILE, "
                'or write key = "env:NAME" in [upstreams.openai].'
            ),
        ),
        (
            {"upstream_key_file": "k"},
            "--upstream-key-file does not say what it is for; " + CHOOSE,
        ),
        (
            {"upstream": "http://x/v1", "upstream_key_file": "nowhere"},
            "The key file nowhere (--upstream-key-file) cannot be read: No such file or directory.",
        ),
    ],
)
def test_a_wrong_flag_raises_one_sentence_without_secrets(flags: dict[str, Any], sentence: str) -> None:
    assert error_of(flags) == sentence
    assert "s3cret" not in sentence


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"OUTLIVE_PORT": "x"}, "OUTLIVE_PORT must be a whole number from 0 to 65535, not 'x'."),
        ({"OUTLIVE_LENIENT_CHAT": "perhaps"}, "OUTLIVE_LENIENT_CHAT must be true or false, not 'perhaps'."),
        ({"OUTLIVE_UPSTREM": "openai"}, "OUTLIVE_UPSTREM is not a setting; did you mean OUTLIVE_UPSTREAM?"),
        (
            {"OUTLIVE_UPSTREAM_KEY": "s3cret"},
            "OUTLIVE_UPSTREAM_KEY does not say what it is for; " + CHOOSE,
        ),
    ],
)
def test_a_wrong_variable_raises_one_sentence(environ: dict[str, str], sentence: str) -> None:
    assert error_of({}, environ) == sentence


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1", "prot in FILE is not a setting; did you mean port?"),
        ("max_items = 1", "max_items in FILE belongs in the table [limits]."),
        ("limits = 1", "limits in FILE must be a table: [limits]."),
        ("[limits]\nmax_itms = 1", "max_itms in [limits] of FILE is not a setting; did you mean max_items?"),
        ("[limits]\nmax_items = 0", "max_items in [limits] of FILE must be a whole number of 1 or more, not 0."),
        ('port = "7878"', "port in FILE must be a whole number from 0 to 65535, not '7878'."),
        ("port = true", "port in FILE must be a whole number from 0 to 65535, not true."),
        ("grace_seconds = nan", "grace_seconds in FILE must be a number of 0 or more, not nan."),
        ("host = [1]", "host in FILE must be text, not a list."),
        ('lenient_chat = "yes"', "lenient_chat in FILE must be true or false, not 'yes'."),
        ('cors_origins = "x"', 'cors_origins in FILE must be a list such as ["https://app.example.com"].'),
        ("keys = 1", 'keys in FILE must be a table: [keys] with lines such as alice = "env:ALICE_KEY".'),
        (
            "[keys]\nalice = 5",
            'The key of alice (keys in FILE) must be text, "env:NAME" or {env = "NAME"}.',
        ),
        ("upstreams = 1", "upstreams in FILE must be tables: [upstreams.NAME]."),
        ("[upstreams]\nx = 1", "upstreams in FILE must be tables: [upstreams.NAME]."),
        ('[upstreams."a/b"]', "The upstream name 'a/b' may hold only letters, digits, '_', '.' and '-'."),
        ("[upstreams.x]", "The upstream x has no address: give its url, up to and including /v1."),
        ("[upstreams.x]\nurl = 5", "url in [upstreams.x] must be a URL such as http://localhost:8000/v1."),
        ('[upstreams.x]\nur = "http://x"', "ur in [upstreams.x] is not a setting; did you mean url?"),
        (
            '[upstreams.x]\npreset = "opnai"',
            (
                "preset in [upstreams.x] must be one of openai, azure, anthropic, gemini, openrouter, ollama, vllm, "
                "llamacpp, lmstudio, generic, not 'opnai'."
            ),
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nkey = "env:GONE"',
            "key in [upstreams.x] names the environment variable GONE, which is not set.",
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nkey = "a"\nkey_file = "b"',
            "[upstreams.x] has both key and key_file; give one of them.",
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nkey_file = 3',
            "key_file in [upstreams.x] must be text, not 3.",
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nheaders = { "a b" = "c" }',
            "'a b' in headers in [upstreams.x] is not a header's name.",
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nheaders = "c"',
            'headers in [upstreams.x] must be a table such as { name = "value" }.',
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nheaders = { a = "one\\ntwo" }',
            "a of headers in [upstreams.x] is empty or holds characters that cannot be sent in an HTTP header.",
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\nmodels = { a = 1 }',
            'models in [upstreams.x] must be a table of aliases such as { fast = "gpt-4o-mini" }.',
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\ncontinuation = "yes"',
            "continuation in [upstreams.x] must be one of none, prefill, continue_final_message, prefix, not 'yes'.",
        ),
        (
            '[upstreams.x]\nurl = "http://x/v1"\ndefault = true\n[upstreams.y]\nurl = "http://y/v1"\ndefault = true',
            "Only one upstream can be the default, not x and y.",
        ),
    ],
)
def test_a_wrong_line_in_the_file_raises_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    assert toml_error_of(tmp_path, text) == sentence


def test_a_file_that_is_not_toml_raises_one_sentence(tmp_path: Path) -> None:
    assert toml_error_of(tmp_path, "port =").startswith("The settings file FILE is not valid TOML: ")


def test_the_database_must_not_be_a_folder(tmp_path: Path) -> None:
    sentence = error_of({"database": f"sqlite:///{tmp_path}"})
    assert sentence == f"The database {tmp_path} is a folder; give the name of a file in it."


# -- upstreams


def test_a_url_is_the_only_upstream_and_gets_the_key_of_the_environment() -> None:
    (upstream,) = load({"upstream": "http://gpu:8000/v1/?a=b"}, {"OUTLIVE_UPSTREAM_KEY": "k"}).upstreams
    assert (upstream.name, upstream.url, upstream.key, upstream.query) == (
        "upstream",
        "http://gpu:8000/v1",
        "k",
        {"a": "b"},
    )


def test_a_key_file_from_a_flag_wins_over_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-file\n")
    flags = {"upstream": "http://gpu/v1", "upstream_key_file": str(file)}
    assert load(flags, {"OUTLIVE_UPSTREAM_KEY": "from-variable"}).upstreams[0].key == "from-file"
    environ = {"OUTLIVE_UPSTREAM_KEY": "from-variable", "OUTLIVE_UPSTREAM_KEY_FILE": str(file)}
    assert load({"upstream": "http://gpu/v1"}, environ).upstreams[0].key == "from-variable"


def test_the_upstream_flag_selects_a_table_of_the_file(tmp_path: Path) -> None:
    text = '[upstreams.a]\nurl = "http://a/v1"\n[upstreams.b]\nurl = "http://b/v1"\nmodels = { x = "y" }'
    (upstream,) = load_toml(tmp_path, text, upstream="b").upstreams
    assert (upstream.name, upstream.models) == ("b", {"x": "y"})
    assert [one.name for one in load_toml(tmp_path, text).upstreams] == ["a", "b"]
    sentence = toml_error_of(tmp_path, text, {"OUTLIVE_UPSTREAM_KEY": "k"})
    assert sentence.startswith("OUTLIVE_UPSTREAM_KEY does not say which of a, b it is for;")


def test_the_default_upstream_comes_first(tmp_path: Path) -> None:
    text = '[upstreams.a]\nurl = "http://a/v1"\n[upstreams.b]\nurl = "http://b/v1"\ndefault = true'
    assert [upstream.name for upstream in load_toml(tmp_path, text).upstreams] == ["b", "a"]


def test_every_quirk_can_be_set(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the-key")
    authority = Authority(tmp_path)
    cert, key = authority.sign("client")
    (upstream,) = load_toml(
        tmp_path,
        f"""
        [upstreams.x]
        preset = "vllm"
        url = "https://x.example/v1"
        key_file = "{tmp_path / "key"}"
        headers = {{ x-team = {{ env = "TEAM" }} }}
        query = {{ api-version = "2026-01-01" }}
        models = {{ fast = "big/model" }}
        continuation = "prefix"
        max_tokens_field = "max_tokens"
        developer_role = true
        stream_options = false
        sends_store = true
        key_header = "api-key"
        default_max_tokens = 9
        thinking = "budget"
        prompt_cache = true
        reasoning_input = "encrypted"
        reattach = false
        silence_seconds = 5
        context_window = 4096
        tokenizer = "llamacpp"
        unrunnable_tools = "refuse"
        ca_file = "{authority.file}"
        client_cert = "{cert}"
        client_key = "{key}"
        """,
        {"TEAM": "red", "HTTPS_PROXY": "proxy:3128"},
    ).upstreams
    assert msgspec.structs.asdict(upstream) == {
        "name": "x",
        "url": "https://x.example/v1",
        "dialect": "chat",
        "key": "the-key",
        "key_header": "api-key",
        "headers": {"x-team": "red"},
        "query": {"api-version": "2026-01-01"},
        "models": {"fast": "big/model"},
        "continuation": "prefix",
        "max_tokens_field": "max_tokens",
        "developer_role": True,
        "stream_options": False,
        "sends_store": True,
        "default_max_tokens": 9,
        "thinking": "budget",
        "prompt_cache": True,
        "reasoning_input": "encrypted",
        "reattach": False,
        "any_model": False,
        "silence_seconds": 5.0,
        "context_window": 4096,
        "tokenizer": "llamacpp",
        "unrunnable_tools": "refuse",
        "proxy": "http://proxy:3128",
        "ca_file": str(authority.file),
        "client_cert": str(cert),
        "client_key": str(key),
    }


def test_an_upstream_without_silence_seconds_gets_the_servers(tmp_path: Path) -> None:
    text = 'silence_seconds = 9\n[upstreams.a]\nurl = "http://a/v1"\n'
    assert load_toml(tmp_path, text).upstreams[0].silence_seconds == 9.0


def test_the_anthropic_dialect_sets_its_key_header_and_limits_continuation(tmp_path: Path) -> None:
    text = '[upstreams.a]\nurl = "http://a/v1"\nkey = "k"\ndialect = "anthropic"\n'
    assert load_toml(tmp_path, text).upstreams[0].key_header == "x-api-key"
    assert load_toml(tmp_path, text + 'key_header = "authorization"').upstreams[0].key_header == "authorization"
    assert load_toml(tmp_path, text + 'continuation = "prefill"').upstreams[0].continuation == "prefill"
    sentence = toml_error_of(tmp_path, text + 'continuation = "prefix"')
    assert sentence == "continuation in [upstreams.a] can only be none or prefill in this dialect."


# -- the database


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@db.example:5432/outlive", "postgresql://ann:***@db.example:5432/outlive"),
        ("postgres://ann:p@ss/w@db/outlive?sslmode=require", "postgres://ann:***@db/outlive?sslmode=require"),
        ("postgresql://db/outlive?user=ann&password=s3cret&x=1", "postgresql://db/outlive?user=ann&password=***&x=1"),
        ("postgresql:///outlive", "postgresql:///outlive"),
    ],
)
def test_a_database_is_shown_without_its_password(url: str, shown: str) -> None:
    settings = load({"database": url}, {})
    assert settings.database == url
    assert database_url.show(url) == shown
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize("role", ["api", "worker"])
def test_nodes_on_a_shared_database_may_have_a_role(role: str) -> None:
    settings = load({"database": "postgresql://db/outlive", "role": role, "lease_seconds": "3"}, {})
    assert (settings.role, settings.lease_seconds) == (role, 3.0)


# -- tools and their seal


def test_tool_modules_can_be_given_in_every_source(tmp_path: Path) -> None:
    assert load_toml(tmp_path, 'tools = ["one", "two:f"]').tools == ["one", "two:f"]
    assert load({}, {"OUTLIVE_TOOLS": "one, two:f"}).tools == ["one", "two:f"]
    assert load({"tools": ["one", "two:f"]}, {}).tools == ["one", "two:f"]
    assert toml_error_of(tmp_path, "tools = 5") == 'tools in FILE must be a list of modules, such as ["my_tools"].'
    assert toml_error_of(tmp_path, 'tools = [""]').endswith('such as ["my_tools"].')


KEY, OLD = "k" * 32, "o" * 32


def test_seal_keys_come_from_a_variable_or_a_file_of_several(tmp_path: Path) -> None:
    assert load({}, {}).seal_keys == []
    assert load({}, {"OUTLIVE_SEAL_KEY": KEY}).seal_keys == [KEY]
    assert load_toml(tmp_path, 'seal_key = "env:MINE"', {"MINE": KEY}).seal_keys == [KEY]
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n{OLD}\n")
    for settings in (
        load({"seal_key_file": str(file)}, {"OUTLIVE_SEAL_KEY": OLD}),
        load({}, {"OUTLIVE_SEAL_KEY_FILE": str(file)}),
        load_toml(tmp_path, f'seal_key_file = "{file}"'),
    ):
        assert settings.seal_keys == [KEY, OLD]
        assert KEY not in repr(settings)


def test_an_invalid_seal_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    short = error_of(environ={"OUTLIVE_SEAL_KEY": "canary"})
    assert short == "A seal key must have 32 characters at least; draw it at random."
    assert "cannot be read" in error_of({"seal_key_file": str(tmp_path / "none")})
    (tmp_path / "empty").write_text("\n")
    assert "is empty" in error_of({"seal_key_file": str(tmp_path / "empty")})


def test_a_worker_may_listen_on_every_address_without_keys() -> None:
    given = {"database": "postgresql://db/outlive", "host": "0.0.0.0"}
    assert load({**given, "role": "worker"}, {}).host == "0.0.0.0"
    assert "Without keys" in error_of({**given, "role": "api"})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('issuer = "https://id.example.com"', "audience"),
        ('issuer = "http://id.example.com"\naudience = "a"', "begins with https"),
        ('issuer = "https://id.example.com"\naudience = "a"\nclaim = "sub"', "claim"),
    ],
)
def test_a_wrong_table_of_an_identity_provider_is_refused(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_toml(tmp_path, f"[oidc]\n{table}\n")


def test_with_an_identity_provider_or_required_keys_other_machines_may_ask(tmp_path: Path) -> None:
    table = '[oidc]\nissuer = "https://id.example.com"\naudience = "a"\n'
    settings = load_toml(tmp_path, f'host = "0.0.0.0"\n{table}')
    assert settings.oidc is not None and settings.oidc.owner_claim == "sub"
    assert load({"host": "0.0.0.0", "require_keys": "yes"}, {}).require_keys
