from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replsvc.config import Config
from replsvc.errors import ConfigError
from replsvc.setting_keys import leaves, nearest
from replsvc.settings import Loaded, Override, load


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value(loaded: Loaded, key: str) -> tuple[object, str]:
    found = next(row for row in loaded.rows() if row.key == key)
    return found.value, found.origin


def problems(**arguments: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(**arguments)  # type: ignore[arg-type]
    return caught.value.details["problems"]


# Sources


def test_without_sources_everything_is_the_default():
    loaded = load()
    assert loaded.config == Config()
    assert set(loaded.origins.values()) == {"default"}


def test_each_source_goes_over_the_one_before(empty_directory, monkeypatch):
    (empty_directory / "replsvc.toml").write_text(
        "max_sessions = 1\n[service]\nport = 1\nhost = '::1'\n[limits]\ntimeout_s = 1\n"
    )
    monkeypatch.setenv("REPLSVC_SERVICE__PORT", "2")
    monkeypatch.setenv("REPLSVC_MAX_SESSIONS", "2")
    loaded = load(overrides=[Override("service.port", "3", "--port")])
    assert value(loaded, "limits.timeout_s") == (1.0, "replsvc.toml")
    assert value(loaded, "service.host") == ("::1", "replsvc.toml")
    assert value(loaded, "max_sessions") == (2, "REPLSVC_MAX_SESSIONS")
    assert value(loaded, "service.port") == (3, "--port")
    assert value(loaded, "isolation") == ("best", "default")


def test_every_setting_has_an_origin(monkeypatch):
    monkeypatch.setenv("REPLSVC_ENVIRONMENTS", '{"a": {"env": {"B": "c"}}, "d": {}}')
    loaded = load()
    keys = {".".join(key) for key, _ in leaves(loaded.config.model_dump())}
    assert keys == set(loaded.origins) == {row.key for row in loaded.rows()}
    assert loaded.origins["environments.a.env.B"] == "REPLSVC_ENVIRONMENTS"
    assert loaded.origins["environments.a.python"] == "default"


def test_a_file_that_is_named_is_read_in_place_of_the_one_that_is_there(empty_directory):
    (empty_directory / "replsvc.toml").write_text("max_sessions = 1\n")
    other = empty_directory / "other.toml"
    other.write_text("[service]\nport = 5\n")
    loaded = load(other)
    assert value(loaded, "service.port") == (5, str(other))
    assert value(loaded, "max_sessions") == (1000, "default")


def test_variables_may_hold_lists_and_tables(monkeypatch):
    monkeypatch.setenv("REPLSVC_EXTENSIONS", '["a", "b={}"]')
    monkeypatch.setenv("REPLSVC_SERVICE", '{"port": 4, "host": "a"}')
    monkeypatch.setenv("REPLSVC_SERVICE__HOST", "b")
    loaded = load()
    assert loaded.config.extensions == ("a", "b={}")
    assert value(loaded, "service.port") == (4, "REPLSVC_SERVICE")
    assert value(loaded, "service.host") == ("b", "REPLSVC_SERVICE__HOST")


def test_a_kernels_variables_keep_their_case(monkeypatch):
    monkeypatch.setenv("REPLSVC_ENVIRONMENTS__DATA__ENV__OMP_Num", "1")
    monkeypatch.setenv("REPLSVC_ENVIRONMENTS__DATA__ENV__A__B", "2")
    with pytest.raises(ConfigError):  # two underscores are between parts, also there
        load()
    monkeypatch.delenv("REPLSVC_ENVIRONMENTS__DATA__ENV__A__B")
    assert load().config.environments["data"].env == {"OMP_Num": "1"}


@pytest.mark.parametrize("source", ["file", "variable", "flag"])
def test_the_word_none_lifts_a_limit(source, empty_directory, monkeypatch):
    overrides = []
    if source == "file":
        (empty_directory / "replsvc.toml").write_text('[limits]\ntimeout_s = "none"\n')
    elif source == "variable":
        monkeypatch.setenv("REPLSVC_LIMITS__TIMEOUT_S", "none")
    else:
        overrides = [Override("limits.timeout_s", "none", "--timeout")]
    assert load(overrides=overrides).config.limits.timeout_s is None


def test_the_word_none_stays_a_word_where_nothing_is_no_value(monkeypatch):
    monkeypatch.setenv("REPLSVC_ISOLATION", "none")
    assert load().config.isolation == "none"


def test_a_list_of_a_flag_goes_after_the_list_of_the_settings(empty_directory, monkeypatch):
    add = [Override("extensions", ["c"], "--ext", add=True)]
    assert load(overrides=add).config.extensions == ("c",)
    (empty_directory / "replsvc.toml").write_text('extensions = ["a"]\n')
    assert load(overrides=add).config.extensions == ("a", "c")
    monkeypatch.setenv("REPLSVC_EXTENSIONS", '["b"]')
    assert load(overrides=add).config.extensions == ("b", "c")


# Secrets


def test_what_may_be_secret_is_in_no_row(monkeypatch):
    monkeypatch.setenv("REPLSVC_SERVICE__KEYS", '["first-key", "second-key"]')
    monkeypatch.setenv("REPLSVC_ENVIRONMENTS__A__ENV__TOKEN", "a-token")
    loaded = load()
    shown = repr(loaded.rows())
    assert "first-key" not in shown
    assert "second-key" not in shown
    assert "a-token" not in shown
    assert value(loaded, "service.keys") == (["(hidden)"] * 2, "REPLSVC_SERVICE__KEYS")
    assert loaded.config.service.keys == ("first-key", "second-key")


def test_a_wrong_secret_is_not_repeated_by_the_error(monkeypatch):
    monkeypatch.setenv("REPLSVC_SERVICE__KEYS", '[{"oops": "first-key"}]')
    assert problems() == ["REPLSVC_SERVICE__KEYS: service.keys.0: Input should be a valid string."]


# Problems


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("isolaton = 'none'", "there is no setting 'isolaton'. Did you mean isolation?"),
        ("[limit]\ntimeout_s = 1", "there is no setting 'limit'. Did you mean limits?"),
        (
            "[limits]\ntimeout = 1",
            "there is no setting 'limits.timeout'. Did you mean limits.timeout_s?",
        ),
        ("timeout_s = 1", "there is no setting 'timeout_s'. Did you mean limits.timeout_s?"),
        ("xyzzy = 1", "there is no setting 'xyzzy'."),
        ("max_sessions = 0", "max_sessions: Input should be greater than 0."),
        ("[service]\nport = 'a'", "service.port: Input should be a valid integer, unable to"),
        ("limits = 3", "limits: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_line_names_the_file_the_key_and_the_nearest(empty_directory, text, said):
    (empty_directory / "replsvc.toml").write_text(text)
    (problem,) = problems()
    assert problem.startswith(f"replsvc.toml: {said}")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("REPLSVC_ISOLATON", "none", "'isolaton'. Did you mean REPLSVC_ISOLATION?"),
        (
            "REPLSVC_LIMITS__TIMEOUT",
            "1",
            "'limits.timeout'. Did you mean REPLSVC_LIMITS__TIMEOUT_S?",
        ),
        ("REPLSVC_TIMEOUT_S", "1", "'timeout_s'. Did you mean REPLSVC_LIMITS__TIMEOUT_S?"),
        ("REPLSVC_SERVICE", '{"prt": 1}', "'service.prt'. Did you mean REPLSVC_SERVICE__PORT?"),
        ("REPLSVC_", "", "''."),
    ],
)
def test_an_unknown_variable_is_an_error_with_the_nearest(monkeypatch, name, text, said):
    monkeypatch.setenv(name, text)
    assert problems() == [f"{name}: there is no setting {said}"]


@pytest.mark.parametrize("text", ["plain", "[", "[" * 100_000])
def test_a_list_that_is_no_json_says_how_to_write_it(monkeypatch, text):
    monkeypatch.setenv("REPLSVC_SERVICE__KEYS", text)
    assert problems() == ['REPLSVC_SERVICE__KEYS: write JSON: ["a", "b"] or {"key": "value"}.']


def test_a_value_in_a_tables_place_is_reported_though_parts_of_it_are_given(monkeypatch):
    monkeypatch.setenv("REPLSVC_LIMITS", "3")
    monkeypatch.setenv("REPLSVC_LIMITS__TIMEOUT_S", "4")
    (problem,) = problems()
    assert problem.startswith("REPLSVC_LIMITS: limits: Input should be a valid dictionary")


def test_all_problems_are_reported_together(empty_directory, monkeypatch):
    (empty_directory / "replsvc.toml").write_text("a = 1\nb = 2\n")
    monkeypatch.setenv("REPLSVC_C", "3")
    found = problems(overrides=[Override("d", 4, "--d")])
    assert [problem.split(":")[0] for problem in found] == [
        *("replsvc.toml", "replsvc.toml", "REPLSVC_C", "--d")
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = \n", "broken.toml is not TOML: Invalid value (at line 1"),
        (b"a = '\xff'\n", "broken.toml is not TOML: 'utf-8' codec can't decode"),
        (None, "there is no configuration file broken.toml."),
    ],
)
def test_a_file_that_can_not_be_used_says_why(empty_directory, content, said):
    if content is not None:
        (empty_directory / "broken.toml").write_bytes(content)
    (problem,) = problems(config_file=Path("broken.toml"))
    assert problem.startswith(said)


def test_a_directory_in_the_files_place_says_so(empty_directory):
    (empty_directory / "replsvc.toml").mkdir()
    assert problems() == ["replsvc.toml can't be read: Is a directory."]


KNOWN = [key for key, _ in leaves(Config().model_dump())]


@given(st.sampled_from(KNOWN), st.data())
def test_a_name_with_a_letter_left_out_has_its_own_as_the_nearest(key, data):
    leaf = key[-1]
    at = data.draw(st.integers(0, len(leaf) - 1))
    wrong = (*key[:-1], leaf[:at] + leaf[at + 1 :])
    if wrong not in KNOWN:
        assert nearest(wrong) == key
