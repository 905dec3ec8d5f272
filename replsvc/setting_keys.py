"""The names of settings: paths of parts through the model, and the nearest name to a wrong one."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from replsvc.config import Config

Key = tuple[str, ...]
"""`limits.timeout_s` is `("limits", "timeout_s")`."""


def dotted(key: Key) -> str:
    """The key as people write it."""
    return ".".join(key)


def annotation(key: Key) -> Any:
    """The type of the setting `key`, or of the table; None where there is no such setting."""
    found: Any = Config
    for part in key:
        if _is_model(found):
            field = found.model_fields.get(part)
            found = field.annotation if field is not None else None
        elif get_origin(found) is dict:
            found = get_args(found)[1]
        else:
            return None
    return found


def _is_model(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def is_table(key: Key) -> bool:
    """Whether `key` has settings below it."""
    found = annotation(key)
    return _is_model(found) or get_origin(found) is dict


def holds_many(key: Key) -> bool:
    """Whether `key` is a table or a list: no single word can say its value."""
    return is_table(key) or get_origin(annotation(key)) is tuple


def unknown_part(key: Key, value: Any) -> Key | None:
    """The first part of `key`, or of the tables in `value`, that is no setting."""
    for end in range(1, len(key) + 1):
        if annotation(key[:end]) is None:
            return key[:end]
    if isinstance(value, Mapping) and is_table(key):
        for name, inner in value.items():
            if (unknown := unknown_part((*key, name), inner)) is not None:
                return unknown
    return None


def lifted(key: Key, value: Any) -> Any:
    """`value` with the word `none` as None, wherever None is allowed."""
    if isinstance(value, Mapping):
        return {name: lifted((*key, name), inner) for name, inner in value.items()}
    found = annotation(key)
    optional = get_origin(found) in (Union, types.UnionType) and type(None) in get_args(found)
    return None if optional and value == "none" else value


def leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is no table, with its key; an empty table counts as a value."""
    if isinstance(value, Mapping) and (value or not key):
        for name, inner in value.items():
            yield from leaves(inner, (*key, name))
    else:
        yield key, value


def nearest(unknown: Key) -> Key | None:
    """The setting that was likely meant: one beside it, else one that is called so elsewhere."""
    *outer, leaf = unknown
    beside = [key for key in _known(tuple(outer)) if len(key) == len(unknown)]
    everywhere = list(_known(()))
    for candidates in (beside, everywhere):
        by_leaf = {key[-1]: key for key in reversed(candidates)}
        if near := difflib.get_close_matches(leaf, by_leaf, 1):
            return by_leaf[near[0]]
    by_name = {dotted(key): key for key in everywhere}
    near = difflib.get_close_matches(dotted(unknown), by_name, 1)
    return by_name[near[0]] if near else None


def _known(key: Key) -> Iterator[Key]:
    found = annotation(key)
    if _is_model(found):
        for name in found.model_fields:
            yield (*key, name)
            yield from _known((*key, name))
