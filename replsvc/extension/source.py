"""Source: setup code in each form that an author may give, as what crosses into the kernel.

Nothing is compiled here for its own sake: the kernel compiles with its own Python, which may know
more or less syntax than ours, and its error names version, file and line. Only what could never be
compiled anywhere (undecodable files, NUL characters, malformed syntax trees) is refused here.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import keyword
import tokenize
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from replsvc.extension.contract import Code, Quoted, surrogate_problem
from replsvc.extension.issues import absolute, clip, raised
from replsvc_kernels.messages import SetupCode

if TYPE_CHECKING:
    from collections.abc import Iterator


class SourceError(ValueError):
    """Raised for setup code that can't be sent; the message is a sentence's end."""


def setup_code(name: str, code: Code) -> SetupCode:
    """The setup code of the extension called `name`, as data.

    - A quotation keeps its file and lines.
    - A `Path` is read now, in the encoding that it declares (PEP 263; UTF-8 without), and keeps its
      absolute path.
    - A string's file is `<extension NAME>`.
    - A syntax tree is written out as source, whose file is `<extension NAME>`.

    Raises `SourceError`.
    """
    if isinstance(code, Quoted):
        return SetupCode(
            name=name,
            source=code.source,
            file=code.file,
            first_line=code.first_line,
            body_of=code.body_of,
            values=dict(code.values),
        )
    file = f"<extension {name}>"
    if isinstance(code, Path):
        source, file = _read(code), absolute(str(code))
    elif isinstance(code, str):
        source = code
    else:
        body = code if isinstance(code, list) else code.body
        source = _unparse(ast.Module(body=body, type_ignores=[]), file)
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise SourceError(f"contains a NUL character in line {line}")
    if problem := surrogate_problem(source):
        raise SourceError(problem)
    return SetupCode(name=name, source=source, file=file)


def _read(path: Path) -> str:
    try:
        # Opening a pipe or a device would wait for it, perhaps for ever.
        if path.exists() and not path.is_file():
            raise SourceError(f"file {clip(str(path))} is not a regular file")
        with tokenize.open(path) as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SourceError(f"file {clip(str(path))} can't be read: {reason}") from None
    except (UnicodeDecodeError, SyntaxError) as error:
        raise SourceError(
            f"file {clip(str(path))} can't be decoded: {clip(str(error))}; "
            "save it as UTF-8, or declare its encoding in its first line"
        ) from None
    except ValueError as error:  # a NUL character in the path itself
        raise SourceError(f"file {clip(str(path))!r} can't be read: {error}") from None


def _unparse(tree: ast.Module, file: str) -> str:
    """Write `tree` as source; a copy is checked, so the author's stays as it is."""
    try:
        # The kernel's compiler warns where the author looks; and newer Pythons warn of a node that
        # lacks something as soon as it is copied.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.fix_missing_locations(copy.deepcopy(tree))
            _check_names(tree)
            # A SyntaxError is about well-formed code: the kernel's Python is the one to judge it.
            with contextlib.suppress(SyntaxError):
                compile(tree, file, "exec", dont_inherit=True)
            return ast.unparse(tree)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"is not a valid syntax tree: {raised(error)}") from None


def _check_names(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        for label, text in _identifiers(node):
            # Unparsing writes names as they are, so one with a newline would be code.
            if not _is_name(text):
                raise SourceError(
                    f"is a syntax tree whose {type(node).__name__}.{label} is {clip(text)!r}, "
                    "not a Python name"
                )


def _identifiers(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a node carries as text, with their fields."""
    if isinstance(node, ast.Constant):
        return
    for label, value in ast.iter_fields(node):
        if label in ("type_comment", "str"):  # a comment, and a t-string's own source
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield label, text


def _is_name(text: str) -> bool:
    return text == "*" or all(
        part.isidentifier() and not keyword.iskeyword(part) for part in text.split(".")
    )
