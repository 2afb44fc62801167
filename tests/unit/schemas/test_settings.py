"""Settings: where they come from, which wins, and what is said of a wrong one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas.errors import ConfigurationError
from schemas.settings import Settings, environment_name, load_settings

KEY = "sk-very-secret"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is set, and the working directory holds no file."""
    for name in list(os.environ):
        if name.upper().startswith(("CHATMILL_", "OPENAI_", "REDIS_URL", "DATABASE_URL")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "chatmill.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def wrong(**overrides: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_settings(overrides=overrides)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_everything_has_a_default(tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.port, settings.queue, settings.namespace) == (8080, "chat", "chatmill")
    assert settings.data_dir == tmp_path / ".chatmill"
    assert settings.sqlalchemy_url == f"sqlite:///{tmp_path / '.chatmill' / 'chatmill.db'}"


def test_the_file_beats_the_default_the_environment_the_file_and_an_override_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_settings().port == 8080
    write("port = 1")
    assert load_settings().port == 1
    monkeypatch.setenv("CHATMILL_PORT", "2")
    assert load_settings().port == 2
    assert load_settings(overrides={"port": 3}).port == 3


@pytest.mark.parametrize("spelling", ["CHATMILL_PORT", "chatmill_port", "Chatmill_Port"])
def test_the_environment_is_read_in_any_case(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    write("port = 1")
    monkeypatch.setenv(spelling, "2")
    assert load_settings().port == 2


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    write('port = 1\nredis_url = "redis://file"')
    monkeypatch.setenv("CHATMILL_PORT", "")
    monkeypatch.setenv("REDIS_URL", "")
    settings = load_settings()
    assert (settings.port, settings.redis_url.get_secret_value()) == (1, "redis://file")


def test_addresses_have_the_names_that_everybody_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    write('redis_url = "redis://file"\ndatabase_url = "sqlite:///file"')
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///environment")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    settings = load_settings()
    assert settings.redis_url.get_secret_value() == "redis://environment"
    assert settings.sqlalchemy_url == "sqlite:///environment"
    assert settings.openai_api_key is not None
    assert settings.openai_base_url == "http://localhost:1/v1"


@pytest.mark.parametrize("setting", Settings.model_fields)
def test_every_setting_names_its_variable(setting: str) -> None:
    name = environment_name(setting)
    assert name.isupper()
    assert Settings.model_fields[setting].description


@pytest.mark.parametrize(
    ("url", "spelt"),
    [
        ("postgres://u:p@h:1/d", "postgresql+psycopg://u:p@h:1/d"),
        ("postgresql://u:p@h/d?sslmode=require", "postgresql+psycopg://u:p@h/d?sslmode=require"),
        ("postgresql+psycopg://u@h/d", "postgresql+psycopg://u@h/d"),
        ("sqlite:////var/lib/x.db", "sqlite:////var/lib/x.db"),
    ],
)
def test_a_database_is_spelt_as_people_do(url: str, spelt: str) -> None:
    assert load_settings(overrides={"database_url": url}).sqlalchemy_url == spelt


def test_another_file_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    write("port = 1")
    other = write("port = 2", "other.toml")
    assert load_settings(other).port == 2
    monkeypatch.setenv("CHATMILL_CONFIG", str(other.absolute()))
    assert load_settings().port == 2


def test_a_file_that_was_named_must_be_there() -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.toml"):
        load_settings(Path("missing.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "colour"),
        ("port = ", "TOML"),
        ("port = 70000", "port"),
        ('port = "x"', "port"),
        ("lease_s = inf", "lease_s"),
        ("lease_s = nan", "lease_s"),
        ("lease_s = 0", "lease_s"),
        ("lease_s = 1", "lease_renew_s"),
        ('namespace = "a b"', "namespace"),
        ('namespace = "a\\n"', "namespace"),
        ('queue = "a.b"', "queue"),
        ('log_level = "loud"', "log_level"),
        ("models = 1", "models"),
        ("[models.m]\nprise = 1", "models.m.prise"),
        ('[models.m]\nprofile = "martian"', "models.m.profile"),
        ("[models.m]\ncontext_window = 0", "models.m.context_window"),
        ('[frameworks.mine]\nlabel = "x"', "frameworks.mine.handler"),
        ('[frameworks.langgraph]\nhandler = "a:b"', "langgraph"),
        ("[tools]\nmine = 1", "tools.mine"),
    ],
)
def test_a_wrong_file_is_told_in_one_line_that_names_the_setting(text: str, said: str) -> None:
    write(text)
    assert said in wrong()


def test_a_file_that_is_no_text_is_told() -> None:
    Path("chatmill.toml").write_bytes(b"\xff\xfe")
    assert "chatmill.toml" in wrong()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("CHATMILL_PORT", "x", "port"), ("CHATMILL_MODELS", "no json", "models"), ("CHATMILL_THREADS", "0", "threads")],
)
def test_a_wrong_variable_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    assert said in wrong()


@pytest.mark.parametrize("name", ["redis_url", "database_url", "openai_api_key"])
def test_secrets_are_not_shown(name: str) -> None:
    settings = load_settings(overrides={name: f"redis://:{KEY}@h"})
    assert KEY not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"


def test_a_wrong_secret_is_not_shown_either() -> None:
    assert KEY not in wrong(openai_api_key=[KEY])


def test_without_a_provider_the_demo_model_answers() -> None:
    settings = load_settings(overrides={"demo_url": "http://localhost:1/v1"})
    assert (settings.has_provider, settings.default_model, settings.known_models()) == (False, "demo", ["demo"])
    target = settings.model_target()
    assert (target.model, target.base_url, target.api_key.get_secret_value()) == (
        "demo",
        "http://localhost:1/v1",
        "demo",
    )
    assert settings.knows_model("demo-fault-status-429")
    assert settings.model_target("demo-slow").model == "demo-slow"
    assert not settings.knows_model("gpt-4o-mini")


def test_without_anything_no_model_answers() -> None:
    settings = load_settings()
    assert not settings.knows_model("demo-slow")
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        settings.model_target()


def test_a_key_alone_selects_openai() -> None:
    settings = load_settings(overrides={"openai_api_key": KEY})
    target = settings.model_target()
    assert (target.name, target.base_url, target.api_key.get_secret_value()) == ("gpt-4o-mini", None, KEY)
    assert KEY not in repr(target)


def test_a_local_server_needs_no_key() -> None:
    settings = load_settings(overrides={"openai_base_url": "http://localhost:1/v1", "model": "llama"})
    target = settings.model_target()
    assert (target.name, target.base_url, target.api_key.get_secret_value()) == (
        "llama",
        "http://localhost:1/v1",
        "none",
    )


def test_a_model_nobody_knows_is_refused_with_those_that_are() -> None:
    settings = load_settings(overrides={"openai_api_key": KEY, "model": "a"})
    with pytest.raises(ConfigurationError, match="known are: a"):
        settings.model_target("b")


def test_models_of_the_file_have_their_own_address_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        "[models.fast]\n"
        'model = "org/fast-7b"\nbase_url = "http://localhost:2/v1"\napi_key_env = "FAST_KEY"\nprofile = "vllm"\n'
        "context_window = 8192\nprice_in = 1\n"
        "[models.plain]\n"
    )
    monkeypatch.setenv("FAST_KEY", "fast-secret")
    settings = load_settings(overrides={"openai_api_key": KEY})
    assert settings.known_models() == ["gpt-4o-mini", "fast", "plain"]
    fast = settings.model_target("fast")
    assert (fast.name, fast.model, fast.base_url) == ("fast", "org/fast-7b", "http://localhost:2/v1")
    assert (fast.profile, fast.context_window) == ("vllm", 8192)
    assert fast.api_key.get_secret_value() == "fast-secret"


def test_a_key_in_the_file_serves_the_models_of_the_file() -> None:
    write(f'openai_api_key = "{KEY}"\n[models.plain]')
    assert load_settings().model_target("plain").api_key.get_secret_value() == KEY


def test_a_model_of_the_file_without_its_key_says_which_variable_is_missing() -> None:
    write('[models.fast]\napi_key_env = "FAST_KEY"')
    with pytest.raises(ConfigurationError, match="FAST_KEY"):
        load_settings().model_target("fast")


def test_the_users_own_frameworks_and_tools_are_known_without_loading_them() -> None:
    write('[frameworks.mine]\nhandler = "nowhere:Handler"\nlabel = "Mine"\n[tools]\nsay = "nowhere:say"')
    settings = load_settings()
    assert ("mine", "Mine") in settings.framework_choices
    assert "langgraph" in dict(settings.framework_choices)
    assert "say" in settings.tool_names
    assert "calculator" in settings.tool_names


def test_settings_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_settings().port = 1
