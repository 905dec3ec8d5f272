"""Settings from where people keep them: `replsvc.toml`, then `REPLSVC_*`, then flags; last wins.

A variable's name is the setting's, with `__` between its parts: `REPLSVC_LIMITS__TIMEOUT_S=60`;
one that holds a list or a table is JSON. Where a setting may be empty, the word `none` makes it so,
since TOML and variables have no null. Relative paths are relative to the working directory.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from replsvc.config import Config
from replsvc.errors import ConfigError
from replsvc.setting_keys import Key, dotted, holds_many, leaves, lifted, nearest, unknown_part

CONFIG_FILE = "replsvc.toml"
DEFAULT = "default"
PREFIX = "REPLSVC_"
DELIMITER = "__"
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Override:
    """A value from the command line: the setting's dotted key, the value, and the flag's name.

    With `add` the value is a list that goes after the one that the other places give.
    """

    key: str
    value: Any
    flag: str
    add: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as `replsvc config` shows it; `value` is JSON data."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings in force. `origins` has for each dotted key where its value comes from.

    An origin is `default`, the file as it was named, a variable's name or a flag's.
    """

    config: Config
    origins: dict[str, str]

    def rows(self) -> list[Row]:
        """Every setting in the order of the sections; what may be secret is hidden."""
        return [
            Row(dotted(key), _masked(key, value), self.origins[dotted(key)])
            for key, value in leaves(self.config.model_dump(mode="json"))
        ]


def load(config_file: Path | None = None, overrides: Sequence[Override] = ()) -> Loaded:
    """Read the settings; None reads `replsvc.toml` in the working directory if it is there.

    Raises `ConfigError` with every problem; each names its file, variable or flag, and the key.
    """
    below = (_File(config_file), _Environment(os.environ))
    places = (*below, _Flags(overrides, below))
    if problems := [problem for place in places for problem in place.problems]:
        raise _config_error(problems)
    origins = {key: label for place in places for key, label in place.origins.items()}

    class Settings(Config, BaseSettings):  # type: ignore[misc]  # model_config's declared types differ
        """`Config`, filled from our places; pydantic-settings puts them over one another."""

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_Source(settings_cls, place.data) for place in reversed(places))

    try:
        settings = Settings()
    except ValidationError as error:
        raise _config_error(_problems(error, origins)) from None
    config = Config(**{name: getattr(settings, name) for name in Config.model_fields})
    known = [key for key, _ in leaves(config.model_dump())]
    return Loaded(config, {dotted(key): origins.get(key, DEFAULT) for key in known})


class _Source(PydanticBaseSettingsSource):
    """What one place says, as pydantic-settings asks for it."""

    def __init__(self, settings_cls: type[BaseSettings], data: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._data = data

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - the base's
        """See the base; never asked, since all data is given at once."""
        return self._data.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._data


class _Place:
    """Base of the places that values come from: nested data, and what each key was read from."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.origins: dict[Key, str] = {}
        self.problems: list[str] = []

    def put(self, key: Key, value: Any, origin: str) -> None:
        """Take one value, or a table of them."""
        if (unknown := unknown_part(key, value)) is not None:
            near = nearest(unknown)
            hint = f" Did you mean {self.spelled(near)}?" if near is not None else ""
            self.problems.append(f"{origin}: there is no setting {dotted(unknown)!r}.{hint}")
            return
        value = lifted(key, value)
        self.origins.update({(*key, *leaf): origin for leaf, _ in leaves(value)})
        inner = self.data
        for part in key[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):  # a table's place is taken: validation says by what
                return
        inner[key[-1]] = value

    def spelled(self, key: Key) -> str:
        """How a setting is called here."""
        return dotted(key)


class _File(_Place):
    def __init__(self, path: Path | None) -> None:
        super().__init__()
        file = path if path is not None else Path(CONFIG_FILE)
        try:
            data = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if path is not None:
                self.problems.append(f"there is no configuration file {file}.")
            return
        except OSError as error:
            self.problems.append(f"{file} can't be read: {error.strerror}.")
            return
        except ValueError as error:
            self.problems.append(f"{file} is not TOML: {error}.")
            return
        for name, value in data.items():
            self.put((name,), value, str(file))


class _Environment(_Place):
    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
        # Sorted, so that a table given as JSON comes before single settings in it.
        for name in sorted(name for name in environ if name.startswith(PREFIX)):
            key, value = self._key(name), environ[name]
            self.put(key, self._parsed(name, value) if holds_many(key) else value, name)

    def _key(self, name: str) -> Key:
        parts = name.removeprefix(PREFIX).split(DELIMITER)
        key = [part.lower() for part in parts]
        if key[:1] == ["environments"] and key[2:3] == ["env"]:
            key[3:] = parts[3:]  # a kernel's variables keep their case
        return tuple(key)

    def _parsed(self, name: str, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.problems.append(f'{name}: write JSON: ["a", "b"] or {{"key": "value"}}.')
            return {}

    def spelled(self, key: Key) -> str:
        return PREFIX + DELIMITER.join(key).upper()


class _Flags(_Place):
    def __init__(self, overrides: Sequence[Override], below: Sequence[_Place]) -> None:
        super().__init__()
        for override in overrides:
            key, value = tuple(override.key.split(".")), override.value
            if override.add:
                value = [*_listed(key, below), *value]
            self.put(key, value, override.flag)


def _listed(key: Key, places: Sequence[_Place]) -> list[Any]:
    """The list that the last of `places` gives for `key`; what is no list is said elsewhere."""
    for place in reversed(places):
        found: Any = place.data
        for part in key:
            found = found.get(part) if isinstance(found, dict) else None
        if found is not None:
            return found if isinstance(found, list) else []
    return []


def _masked(key: Key, value: Any) -> Any:
    if key == ("service", "keys"):
        return [HIDDEN for _ in value]
    # A kernel's variables are where people put credentials.
    is_variable = key[:1] == ("environments",) and key[2:3] == ("env",)
    return HIDDEN if is_variable and value else value


def _problems(error: ValidationError, origins: Mapping[Key, str]) -> list[str]:
    found = []
    for item in error.errors(include_url=False, include_input=False):
        key = tuple(str(part) for part in item["loc"])
        # The problem may be with a part of what was given, such as one of a list.
        given = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in origins), ())
        found.append(f"{origins.get(given, 'settings')}: {dotted(key)}: {item['msg']}.")
    return found


def _config_error(problems: Sequence[str]) -> ConfigError:
    return ConfigError(
        " ".join(problems),
        hint="`replsvc config` shows every setting and where it comes from.",
        details={"problems": list(problems)},
    )
