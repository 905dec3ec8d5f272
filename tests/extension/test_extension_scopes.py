"""The names that a body would miss, held against what Python's own compiler looks up globally."""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import builtins
import configparser
import contextlib
import dataclasses
import dis
import doctest
import enum
import functools
import inspect
import logging
import mailbox
import optparse
import pathlib
import pickle
import pydoc
import subprocess
import sys
import tarfile
import traceback
import types
import typing
import unittest.mock
import urllib.request
import zipfile

import pytest

from replsvc.extension import scopes


def found(source: str, *given: str) -> list[tuple[int, str]]:
    """(line, first word of the problem) for `source` as a body."""
    return [
        (line, problem.split("`")[1])
        for line, problem in scopes.problems(ast.parse(source).body, given)
    ]


def globals_read(code: types.CodeType) -> set[str]:
    """What the compiled function and all code in it read as globals, and do not set as such."""
    read: set[str] = set()
    stored: set[str] = set()
    waiting = [code]
    while waiting:
        at = waiting.pop()
        waiting += [const for const in at.co_consts if isinstance(const, types.CodeType)]
        local = {step.argval for step in dis.get_instructions(at) if step.opname == "STORE_NAME"}
        for step in dis.get_instructions(at):
            if step.opname in ("LOAD_GLOBAL", "DELETE_GLOBAL") or (
                step.opname == "LOAD_NAME" and step.argval not in local
            ):
                read.add(step.argval)
            elif step.opname == "STORE_GLOBAL":
                stored.add(step.argval)
    return read - stored - set(dir(builtins)) - {"__module__", "__qualname__"}


MODULES = [
    argparse,
    ast,
    asyncio.base_events,
    configparser,
    contextlib,
    dataclasses,
    doctest,
    enum,
    functools,
    inspect,
    logging,
    mailbox,
    optparse,
    pathlib,
    pickle,
    pydoc,
    subprocess,
    tarfile,
    traceback,
    typing,
    unittest.mock,
    urllib.request,
    zipfile,
]


def codes_of(name: str, code: types.CodeType) -> list[types.CodeType]:
    """The code of the functions called so in a module's, also where it is generic."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    generic = [one for one in inner if one.co_name == f"<generic parameters of {name}>"]
    return [one for where in (inner, *(codes_of(name, g) for g in generic)) for one in where
            if one.co_name == name]  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_it_agrees_with_the_compiler_on_every_function_of_the_standard_library(
    module: types.ModuleType,
) -> None:
    tree = ast.parse(inspect.getsource(module))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    functions += [
        node
        for owner in tree.body
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
    ]
    for function in functions:
        function.decorator_list = []
        alone = compile(ast.Module(body=[function], type_ignores=[]), "<alone>", "exec")
        (code,) = codes_of(function.name, alone)
        annotated = {
            inner.id
            for statement in ast.walk(function)
            if isinstance(statement, ast.AnnAssign)
            for inner in ast.walk(statement.annotation)
            if isinstance(inner, ast.Name)
        }
        parameters = [
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        ]
        # Python 3.12's own generics: bound around the body, like parameters.
        parameters += [parameter.name for parameter in getattr(function, "type_params", [])]
        mine = {
            problem.split("`")[1]
            for _, problem in scopes.problems(function.body, parameters)
            if "no parameter" in problem
        }
        expected = globals_read(code)
        # `super()` alone makes the compiler look for `__class__`, whose class is missing here.
        assert mine - annotated - {"__class__"} == expected - annotated - {"__class__"}, (
            function.name
        )


def test_names_of_a_class_are_seen_in_its_block_and_not_in_its_functions() -> None:
    source = """
class A:
    x = 1
    y = x
    def f(self):
        return x
"""
    assert found(source) == [(6, "x")]


def test_a_walrus_in_a_comprehension_binds_outside_of_it() -> None:
    assert found("[(last := i) for i in range(3)]\nprint(last, i)") == [(2, "i")]


def test_a_name_is_reported_once_where_it_is_first_used() -> None:
    assert found("def f(): return x\nx\nx.y(x)") == [(1, "x")]


def test_a_name_that_a_nested_global_statement_binds_is_the_bodys() -> None:
    assert found("def f():\n global x\n x = 1\nf()\nprint(x)") == []


def test_a_global_statement_alone_binds_nothing() -> None:
    assert found("global x\nprint(x)") == [(2, "x")]
    assert found("global x\nx = 1\nprint(x)") == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters_are_seen_where_python_sees_them() -> None:
    source = (
        "class A[T: Missing]:\n  def f[U](self, x: T) -> U: return T, U\ntype B[K] = dict[K, A]\nB"
    )
    assert found(source) == [(1, "Missing")]
    assert found("def f[T](): pass\nT") == [(2, "T")]


def test_problems_come_in_the_order_of_their_lines() -> None:
    source = "return later\nyield early\ndef f():\n nonlocal gone\n"
    tree = ast.parse(source)
    lines = [line for line, _ in scopes.problems(tree.body, ())]
    assert lines == sorted(lines) == [1, 1, 2, 2, 4]
