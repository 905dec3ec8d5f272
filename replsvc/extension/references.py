"""References: extensions named by text, on the command line and in config.

`module:object`, a path to a `.py` file (alone or with `:object`), or the name of a bundled
extension; each may be followed by `=JSON`, an object with its opts.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import pkgutil
import re
import sys
import types
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from replsvc.errors import ExtensionError, with_hint
from replsvc.extension.contract import Extension
from replsvc.extension.issues import clip, extension_error, nearest, raised, shown
from replsvc.extension.naming import FILE_STEM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUNDLED = "replsvc_extensions"
"""The package whose modules are named by their plain names."""
FORMS = (
    "Write module:object, a path to a .py file (or file.py:object) or a bundled extension's name"
)


_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference that was parsed and not yet loaded: where the extension is, and its opts."""

    target: str
    opts: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def is_file(self) -> bool:
        """Whether `target` is a path alone; otherwise it names an object, or is a plain name."""
        return self.target.endswith(".py")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded extension: its public name, the object, and the opts that its reference gave.

    `name` is the extension's own, else that of its object or file.
    """

    name: str
    thing: object
    opts: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def item(self) -> object:
        """What `resolve` takes: the object, with its opts where it has any."""
        return (self.thing, self.opts) if self.opts else self.thing


def parse(text: str) -> Reference:
    """Split a reference into its target and opts; nothing is imported or read.

    Raises `ExtensionError` for an empty target, and for opts that aren't a JSON object.
    """
    if found := re.search(r"=\s*\{", text):
        target, given = text[: found.start()], text[found.start() + 1 :]
    elif "=" in text and not text.endswith(".py"):
        target, _, given = text.partition("=")
    else:
        target, given = text, ""
    target = target.strip()
    if not target or "\0" in target:
        raise ExtensionError(
            f"{shown(text)} names no extension", hint=f"{FORMS}, and opts as =JSON after it."
        )
    if target == text.strip():
        return Reference(target)
    try:
        opts = json.loads(given, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ExtensionError(
            f"the opts of {target!r} are not JSON: {clip(str(error))}",
            hint=f'Write {target}={{"key": "value"}}, quoted for your shell.',
        ) from None
    if not isinstance(opts, dict):
        raise ExtensionError(
            f"the opts of {target!r} must be a JSON object, not {type(opts).__name__}",
            hint=f'Write {target}={{"key": "value"}}, quoted for your shell.',
        )
    return Reference(target, opts)


def load(reference: str | Reference, *, index: int = 0) -> Loaded:
    """Import what one reference names; this runs the code of its module.

    A file is loaded anew each time, as a module under a private name that is in `sys.modules` (so
    that tracebacks, dataclasses and pickles of it work), without a place on `sys.path` and without
    bytecode files. Raises `ExtensionError`, whose issue names `extensions[index]` and the target.
    """
    (loaded,) = _load_all([reference], index)
    return loaded


def load_all(references: Sequence[str | Reference]) -> list[Loaded]:
    """Import what all `references` name, each file and object once.

    Raises one `ExtensionError` with the issues of all of them, in their order.
    """
    return _load_all(references, 0)


def _load_all(references: Sequence[str | Reference], start: int) -> list[Loaded]:
    issues: list[str] = []
    loaded: list[Loaded] = []
    known: dict[str, tuple[str, object]] = {}
    for index, given in enumerate(references, start):
        try:
            reference = parse(given) if isinstance(given, str) else given
            key = str(Path(reference.target).resolve()) if reference.is_file else reference.target
            if key not in known:
                known[key] = _import(reference)
            name, thing = known[key]
        except ExtensionError as error:
            issues += [f"extensions[{index}]: {issue}" for issue in _with_hint(error)]
        else:
            if isinstance(thing, Extension) and reference.opts and thing.options is None:
                issues.append(f"extensions[{index}]: {reference.target} takes no opts")
            loaded.append(Loaded(name, thing, reference.opts))
    if issues:
        raise extension_error(issues)
    return loaded


def bundled() -> list[str]:
    """The plain names of the extensions that ship with replsvc, sorted."""
    package = importlib.import_module(BUNDLED)
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if not name.startswith("_"))


def _with_hint(error: ExtensionError) -> list[str]:
    return [with_hint(issue, error.hint) for issue in error.issues]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _import(reference: Reference) -> tuple[str, object]:
    """The public name and the object; an unnamed `Extension` takes that name."""
    target = reference.target
    if reference.is_file:
        return Path(target).stem, _file(Path(target))
    if ":" not in target:
        return target, _plain(target)
    name, thing = _object(target)
    if isinstance(thing, Extension):
        thing = thing if thing.name is not None else replace(thing, name=name)
        return str(thing.name), thing
    return name, thing


class _Loader(SourceFileLoader):
    """Loads from source always, so that no bytecode is written, and a quick edit is seen."""

    def get_code(self, fullname: str) -> types.CodeType:  # noqa: ARG002 - the base's signature
        return self.source_to_code(self.get_data(self.path), self.path)


def _file(path: Path) -> types.ModuleType:
    try:
        what = "" if path.is_file() else "is not a file" if path.exists() else "does not exist"
    except OSError as error:
        what = f"can't be read: {error.strerror}"
    if what:
        raise ExtensionError(f"{str(path)!r} {what}", hint=f"Paths are relative to {Path.cwd()}.")
    path = path.resolve()
    name = f"_replsvc_file_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    if spec is None or spec.loader is None:  # never with a loader of our own
        raise ExtensionError(f"{str(path)!r} can't be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    setattr(module, FILE_STEM, path.stem)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ExtensionError(f"{str(path)!r} raised on import: {raised(error)}") from error
    return module


def _plain(name: str) -> object:
    known = bundled()
    if name in known:
        return _module(f"{BUNDLED}.{name}")
    available = ", ".join(known) if known else "none in this version"
    raise ExtensionError(
        f"no bundled extension is called {shown(name)}.{nearest(name, known)}",
        hint=f"Available: {available}. For one of your own, write module:object or a path to a "
        ".py file.",
    )


def _object(target: str) -> tuple[str, object]:
    module_name, _, path = target.rpartition(":")
    parts = path.split(".")
    in_file = module_name.endswith(".py")
    names = parts if in_file else [*module_name.split("."), *parts]
    if not all(name.isidentifier() for name in names):
        raise ExtensionError(
            f"{shown(target)} is not module:object", hint=f"{FORMS}, and opts as =JSON after it."
        )
    found: Any = _file(Path(module_name)) if in_file else _module(module_name)
    for position, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            # A package's module is an attribute of it only once it has been imported.
            inner = ".".join([module_name, *parts[: position + 1]])
            if in_file or not isinstance(found, types.ModuleType) or not _exists(inner):
                around = ".".join([module_name, *parts[:position]])
                raise ExtensionError(
                    f"{around} has no {part!r}.{nearest(part, dir(found))}",
                    hint="Name an object of the module that is an extension.",
                ) from None
            found = _module(inner)
    return parts[-1], found


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _module(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ExtensionError(f"module {name} raised on import: {raised(error)}") from error
        raise ExtensionError(
            f"there is no module {error.name}",
            hint="It must be installed or on PYTHONPATH; or write a path to its .py file.",
        ) from None
    except (Exception, SystemExit) as error:
        raise ExtensionError(f"module {name} raised on import: {raised(error)}") from error
