"""`quote`: setup code written as a function, so that editors and type checkers read it as code."""

from __future__ import annotations

import ast
import functools
import linecache
import types
import warnings
from typing import TYPE_CHECKING, Any

from replsvc.extension import scopes
from replsvc.extension.contract import Quoted
from replsvc.extension.issues import absolute, extension_error, nearest
from replsvc.extension.literals import NoLiteralError, literal
from replsvc.extension.secret import secrets_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_VARIADIC = 0x04 | 0x08  # CO_VARARGS, CO_VARKEYWORDS
_ASYNC = 0x80 | 0x200  # CO_COROUTINE, CO_ASYNC_GENERATOR


def quote(function: Callable[..., object], /, **values: Any) -> Quoted:
    """Take the body of `function` as setup code, with its parameters bound to `values`.

    The body is not run here: it crosses into the kernel as source and runs there as a module, at
    its real file and lines. So it sees its parameters, builtins and what it binds itself, and
    nothing of what is around it, not even its file's `from __future__` imports. Values cross as
    literals (see `literals.literal`); a `Secret`, also inside a container, arrives as its text. A
    parameter that is not given takes its default.

    `function` is a plain function that was defined by `def` in a file that can be read, without
    decorators (but `staticmethod`), without `*args` and `**kwargs`, and not async: setup code is
    plain code, so `await` belongs into functions that it defines. A name that an earlier extension
    bound is not the body's own; read it by `globals()["name"]`.

    Raises `ExtensionError` with every problem, each with its file and line: names that nothing
    binds, `return`, `yield` and `nonlocal` in the body itself, values that are missing, unknown or
    have no literal form.
    """
    plain = _plain(function)
    code = plain.__code__
    place = f"{absolute(code.co_filename)}:{code.co_firstlineno}"
    if code.co_name == "<lambda>":
        raise extension_error(
            [f"{place}: quote takes a function's body, a lambda has none; use def"]
        )
    if hasattr(plain, "__wrapped__"):
        raise extension_error(
            [f"{place}: {code.co_name} was replaced by a decorator, and only a plain body crosses"]
        )
    node, source, first_line = _read(plain, place)
    names = [argument.arg for argument in _parameters(node.args)]
    bound = _bound(plain, values)
    literals, value_issues = _literals(names, bound, values)
    issues = [f"{place}: {code.co_name} {issue}" for issue in _shape_problems(node, code)]
    issues += [f"{place}: {code.co_name}: {issue}" for issue in value_issues]
    try:
        found = scopes.problems(node.body, names)
    except RecursionError:
        found = [(node.lineno, f"{code.co_name} is nested too deeply to be checked")]
    file = absolute(code.co_filename)
    issues += [f"{file}:{line}: {problem}" for line, problem in found]
    if issues:
        raise extension_error(issues)
    return Quoted(
        source=source,
        file=file,
        first_line=first_line,
        body_of=node.name,
        values=types.MappingProxyType(literals),
        secrets=secrets_in(*bound.values()),
    )


def _plain(function: object) -> types.FunctionType:
    """The Python function itself, or an `ExtensionError` that says what was given instead."""
    if isinstance(function, staticmethod):
        function = function.__func__
    if isinstance(function, types.FunctionType):
        return function
    if isinstance(function, types.MethodType):
        what = f"the bound method {function.__qualname__}; make it a staticmethod"
    elif isinstance(function, type):
        what = f"the class {function.__qualname__}"
    elif isinstance(function, types.BuiltinFunctionType):
        what = f"the builtin {function.__qualname__}, which has no source"
    elif isinstance(function, functools.partial):
        what = "a functools.partial; give the values to quote"
    else:
        what = f"an instance of {type(function).__qualname__}"
    raise extension_error([f"quote takes a function defined by def, not {what}"])


def _read(
    function: types.FunctionType, place: str
) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, str, int]:
    """The function's node (with the file's line numbers), its source and where that begins."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if not lines:
        raise extension_error(
            [f"{place}: {code.co_name} has no source that can be read; define it in a file"]
        )
    changed = (
        f"{place}: {code.co_name} is not there any more; its file changed since it was imported"
    )
    tree = _parse("".join(lines))
    node = _find(tree, code) if tree is not None else None
    if node is None or node.end_lineno is None:
        raise extension_error([changed])
    source, first_line = "".join(lines[node.lineno - 1 : node.end_lineno]), node.lineno
    if _parse(source) is None:  # it is indented
        source, first_line = f"if True:\n{source}", first_line - 1
        if _parse(source) is None:  # its first line goes on from the one before, by a backslash
            raise extension_error([f"{place}: {code.co_name}'s def must begin a line of its own"])
    return node, source, first_line


def _parse(source: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the author's import has shown them already
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _find(tree: ast.Module, code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition that `code` was compiled from, by its first line, name and parameters."""
    count = code.co_argcount + code.co_kwonlyargcount
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            named = [argument.arg for argument in _parameters(node.args)]
            if first == code.co_firstlineno and len(named) == count:
                return node
    return None


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _shape_problems(
    node: ast.FunctionDef | ast.AsyncFunctionDef, code: types.CodeType
) -> list[str]:
    problems = []
    if code.co_flags & _ASYNC:
        problems.append(
            "is async; setup code is plain code, use def and await inside functions of it"
        )
    if code.co_flags & _VARIADIC:
        problems.append(
            "takes *args or **kwargs; name each parameter, so that values can be checked"
        )
    problems += [
        f"is decorated by @{ast.unparse(decorator)}, which would not cross with its body"
        for decorator in node.decorator_list
        if not (isinstance(decorator, ast.Name) and decorator.id == "staticmethod")
    ]
    names = [argument.arg for argument in _parameters(node.args)]
    problems += [
        f"has the parameter `{name}`, which its class renames to `{mangled}`; take one underscore"
        for name, mangled in zip(names, code.co_varnames, strict=False)
        if name != mangled
    ]
    return problems


def _bound(function: types.FunctionType, values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameter to value, defaults filled in; a parameter without either is left out."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    known = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    known |= function.__kwdefaults__ or {}
    known |= values
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: known[name] for name in names if name in known}


def _literals(
    names: Sequence[str], bound: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Parameter to literal, and what is wrong with the values."""
    issues = [f"parameter `{name}` has no value" for name in names if name not in bound]
    issues += [
        f"there is no parameter `{name}`.{nearest(name, names)}"
        for name in values
        if name not in names
    ]
    literals = {}
    for name, value in bound.items():
        try:
            literals[name] = literal(value)
        except NoLiteralError as error:
            issues.append(f"parameter `{name}`: {error}")
    return literals, issues
