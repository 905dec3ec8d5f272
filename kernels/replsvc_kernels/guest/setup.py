"""Extensions' setup code: each in a module of its own, its public names copied to the user's.

What comes is data (source, file, first line, literals); it is compiled here, by this Python.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
import types
from typing import Any, NamedTuple

from . import tracebacks

PACKAGE = "replsvc_setup"
RESERVED = {
    "tools": "the session's tools",
    "ToolError": "the session's tools",
    "get_ipython": "IPython",
    "In": "IPython",
    "Out": "IPython",
    "exit": "IPython",
    "quit": "IPython",
    "display": "IPython",
}


class SetupNameConflict(Exception):  # noqa: N818 - its name is what the user reads
    """Raised when an extension binds a public name that is another's."""


class SetupSourceError(Exception):
    """Raised when the code that was sent is not as it was described."""


class SetupCode(NamedTuple):
    """One extension's code, as the host sends it."""

    name: str
    source: str
    file: str
    first_line: int
    body_of: str | None
    values: dict[str, str]

    @classmethod
    def parse(cls, content: dict[str, Any]) -> SetupCode:
        """Read a `setup_request`'s content. Raises `SetupSourceError` naming what is missing."""
        try:
            return cls(
                name=str(content["name"]),
                source=str(content["source"]),
                file=str(content["file"]),
                first_line=int(content.get("first_line", 1)),
                body_of=content.get("body_of"),
                values=dict(content.get("values") or {}),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SetupSourceError(f"setup_request: bad or missing field: {error}") from error


class Setups:
    """All setups of this kernel, in the order of their first run."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._public: dict[str, dict[str, Any]] = {}

    def run(self, code: SetupCode) -> dict[str, Any]:
        """Run one; the reply's content. Raises what the code raises, and then nothing was copied.

        Running the same name again replaces its module and its names.
        """
        values = _literals(code.values)
        compiled = _compile(code)
        module = types.ModuleType(f"{PACKAGE}.{code.name}")
        module.__file__ = code.file
        earlier = self._earlier(code.name)
        module.__dict__.update(earlier)
        module.__dict__.update(values)
        with _Registered(module):
            exec(compiled, module.__dict__)  # noqa: S102 - this is what setup is
            found = {
                name: value
                for name, value in module.__dict__.items()
                if not name.startswith("_")
                and not (name in values and values[name] is value)
                and not (name in earlier and earlier[name] is value)
            }
            public = self._unreserved(code.name, found)
        self._publish(code.name, public)
        return {"status": "ok", "names": sorted(public)}

    def describe(self, error: BaseException) -> dict[str, Any]:
        """The reply's content for a setup that failed."""
        tb = error.__traceback__
        if isinstance(error, (SetupNameConflict, SetupSourceError)):
            tb = None
        failure = tracebacks.render(error, tb)
        evalue = failure.evalue
        if isinstance(error, SyntaxError):
            version = ".".join(map(str, sys.version_info[:3]))
            evalue = (
                f"Python {version} can't compile {error.filename}, line {error.lineno}: {error.msg}"
            )
        return {
            "status": "error",
            "ename": failure.ename,
            "evalue": evalue,
            "traceback": failure.lines,
        }

    def _earlier(self, name: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for other, public in self._public.items():
            if other == name:
                break
            names.update(public)
        return names

    def _unreserved(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        """What of `found` may be copied. Raises `SetupNameConflict`."""
        import IPython

        public = {}
        for bound, value in found.items():
            if bound in RESERVED:
                # whoever imports what is there anyway takes nothing from anybody
                known = [self._shell.user_ns.get(bound), getattr(builtins, bound, None)]
                known += [getattr(IPython, "get_ipython", None), IPython.display.display]
                if value is None or not any(value is one for one in known):
                    raise SetupNameConflict(
                        f"extension {name!r} binds {bound!r}, which belongs to {RESERVED[bound]}; "
                        "give it another name, or begin it with an underscore"
                    )
                continue
            for other, theirs in self._public.items():
                if other != name and bound in theirs and theirs[bound] is not value:
                    raise SetupNameConflict(
                        f"extensions {other!r} and {name!r} both bind {bound!r}; "
                        "rename it in one of them, or begin it with an underscore"
                    )
            public[bound] = value
        return public

    def _publish(self, name: str, public: dict[str, Any]) -> None:
        namespace = self._shell.user_ns
        for gone, value in self._public.get(name, {}).items():
            if gone not in public and namespace.get(gone) is value:
                del namespace[gone]
        self._public[name] = public
        namespace.update(public)


class _Registered:
    """`sys.modules` holds the module, so that what it defines can be pickled; failure undoes it."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module
        self._before = sys.modules.get(module.__name__)

    def __enter__(self) -> None:
        self._put(self._module)

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is not None:
            self._put(self._before)

    def _put(self, module: types.ModuleType | None) -> None:
        package = sys.modules.get(PACKAGE)
        if package is None:
            package = sys.modules[PACKAGE] = types.ModuleType(PACKAGE, "Setup code of extensions.")
            package.__path__ = []
        full = self._module.__name__
        short = full[len(PACKAGE) + 1 :]
        if module is not None:
            sys.modules[full] = module
            setattr(package, short, module)
        else:
            sys.modules.pop(full, None)
            package.__dict__.pop(short, None)


def _literals(values: dict[str, str]) -> dict[str, Any]:
    bound = {}
    for name, text in values.items():
        try:
            bound[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            raise SetupSourceError(f"the value of {name!r} is no Python literal") from None
    return bound


def _compile(code: SetupCode) -> Any:
    tracebacks.extension_files.add(code.file)
    _remember(code)
    source, shift = code.source, code.first_line - 1
    if source[:1] in (" ", "\t"):
        # a method or nested function, as it stands in its file: columns stay what they are there
        source, shift = "if True:\n" + source, shift - 1
    try:
        tree = ast.parse(source, code.file)
        if code.body_of is not None:
            tree = ast.Module(_body(tree, code), type_ignores=[])
        ast.increment_lineno(tree, shift)
        shift = 0
        return compile(tree, code.file, "exec", dont_inherit=True)
    except SyntaxError as error:
        if error.lineno is not None:
            error.lineno += shift
        if getattr(error, "end_lineno", None) is not None:
            error.end_lineno += shift  # type: ignore[operator]
        raise error.with_traceback(None)  # noqa: B904 - it is the same error, put right


def _body(tree: ast.Module, code: SetupCode) -> list[ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.body_of:
            return node.body
    raise SetupSourceError(f"{code.file} has no function {code.body_of!r} where it should be")


def _remember(code: SetupCode) -> None:
    """Keep the source for tracebacks and `inspect`, where the file itself can't be read here."""
    wanted = [line + "\n" for line in code.source.split("\n")]
    if wanted[-1] == "\n":
        wanted.pop()
    start = code.first_line - 1
    there = list(linecache.getlines(code.file))
    if [line.rstrip() for line in there[start : start + len(wanted)]] == [
        line.rstrip() for line in wanted
    ]:
        return
    there += ["\n"] * (start + len(wanted) - len(there))
    there[start : start + len(wanted)] = wanted
    # no modification time: linecache then never looks for the file
    linecache.cache[code.file] = (sum(map(len, there)), None, there, code.file)
