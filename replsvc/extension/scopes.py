# ruff: noqa: N815 - visitors are named after the nodes of `ast`
"""Scopes: which names a function's body would miss when it runs as a module of its own."""

from __future__ import annotations

import ast
import builtins
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_BUILTINS = frozenset(dir(builtins))


def problems(body: Sequence[ast.stmt], given: Collection[str]) -> list[tuple[int, str]]:
    """What in `body` can't run as a module where the names in `given` are bound: (line, problem).

    Reported, in order of lines: each name that nothing in the body, `given` or the builtins binds
    (once, where it is first used), and `return`, `yield` and `nonlocal` that would need the
    function around. Whether a name is bound *before* it is used is not looked at. Raises
    `RecursionError` for a body nested too deeply.
    """
    visitor = _Visitor()
    for statement in body:
        visitor.visit(statement)
    return visitor.report(frozenset(given) | _BUILTINS)


@dataclass(slots=True, eq=False)
class _Scope:
    """A block with names of its own, as Python's reference defines them.

    `types` is the block of type parameters. `names` are the local ones; in a class and in the body
    itself a name that is only deleted or annotated isn't one, as the lookup goes on to the globals.
    """

    kind: Literal["body", "function", "comprehension", "class", "types"]
    around: _Scope | None = None
    names: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    nonlocals: dict[str, int] = field(default_factory=dict)


class _Visitor(ast.NodeVisitor):
    """Walks a body once, in Python's order, noting what is bound and used where."""

    def __init__(self) -> None:
        self.body = self.scope = _Scope("body")
        self.uses: list[tuple[int, str, _Scope]] = []
        self.found: list[tuple[int, str]] = []
        self.scopes = [self.body]
        self.class_name = ""

    def report(self, given: frozenset[str]) -> list[tuple[int, str]]:
        first: dict[str, int] = {}
        for line, name, scope in self.uses:
            if not self._resolves(name, scope, given):
                first[name] = min(line, first.get(name, line))
        unbound = [
            (
                line,
                f"`{name}` is no parameter, no builtin and not bound in the body; "
                "pass it as a parameter, or import or define it there",
            )
            for name, line in first.items()
        ]
        lost = [
            (line, f"`nonlocal {name}`: the body runs as a module, say `global {name}`")
            for scope in self.scopes
            for name, line in scope.nonlocals.items()
            if not self._is_nonlocal(name, scope)
        ]
        return sorted({*self.found, *unbound, *lost})

    def _resolves(self, name: str, scope: _Scope, given: frozenset[str]) -> bool:
        at: _Scope = scope
        sees_class = True  # a class's names are seen by its own block and its type parameters only
        while at.around is not None:
            if name in at.globals:
                break
            if at.kind == "class":
                if (sees_class and name in at.names) or (not sees_class and name == "__class__"):
                    return True
            elif name in at.names:
                return True
            sees_class = sees_class and at.kind == "types"
            at = at.around
        return name in self.body.names or name in given

    @staticmethod
    def _is_nonlocal(name: str, scope: _Scope) -> bool:
        at = scope.around
        while at is not None and at.around is not None:
            if at.kind == "function" and name in at.names:
                return True
            at = at.around
        return False

    @contextmanager
    def _inside(
        self, kind: Literal["function", "comprehension", "class", "types"]
    ) -> Iterator[None]:
        outer = self.scope
        self.scope = _Scope(kind, outer)
        self.scopes.append(self.scope)
        try:
            yield
        finally:
            self.scope = outer

    def _mangled(self, name: str) -> str:
        """`__name` as Python spells it inside a class."""
        owner = self.class_name.lstrip("_")
        if owner and name.startswith("__") and not name.endswith("__"):
            return f"_{owner}{name}"
        return name

    def _bind(self, name: str, *, scope: _Scope | None = None, value: bool = True) -> None:
        """Note that `name` is bound; with `value=False` that a statement only makes it local."""
        at, name = scope or self.scope, self._mangled(name)
        if name in at.nonlocals:
            return
        if name in at.globals:
            at = self.body
        if value or at.kind not in ("body", "class"):
            at.names.add(name)

    def _use(self, name: str, line: int) -> None:
        self.uses.append((line, self._mangled(name), self.scope))

    def _visit_all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # Names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
            return
        if isinstance(node.ctx, ast.Del):
            self._bind(node.id, value=False)
        self._use(node.id, node.lineno)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._bind(node.target.id, value=False)
            self._use(node.target.id, node.target.lineno)
        else:
            self.visit(node.target)
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self.scope.kind != "function":  # there Python never evaluates it
            self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
        if node.value is None and isinstance(node.target, ast.Name):
            self._bind(node.target.id, value=False)
        else:
            self.visit(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = self.scope
        while scope.kind == "comprehension" and scope.around is not None:
            scope = scope.around
        self._bind(node.target.id, scope=scope)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0])

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._bind(node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.globals.update(self._mangled(name) for name in node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            self.scope.nonlocals.setdefault(self._mangled(name), node.lineno)

    # What needs the function around

    def visit_Return(self, node: ast.Return) -> None:
        if self.scope.kind == "body":
            self.found.append(
                (node.lineno, "`return`: the body runs as a module, there is no caller")
            )
        self.generic_visit(node)

    def visit_Yield(self, node: ast.Yield | ast.YieldFrom) -> None:
        if self.scope.kind == "body":
            self.found.append(
                (node.lineno, "`yield`: the body runs as a module, not as a generator")
            )
        self.generic_visit(node)

    visit_YieldFrom = visit_Yield

    # Blocks

    def visit_FunctionDef(self, node: _Function) -> None:
        parts = node.args
        self._visit_all(node.decorator_list)
        self._visit_all([*parts.defaults, *parts.kw_defaults])
        self._bind(node.name)
        with self._inside("types"):
            self._visit_all(getattr(node, "type_params", []))
            self._visit_all([argument.annotation for argument in _arguments(parts)])
            self._visit_all([node.returns])
            with self._inside("function"):
                for argument in _arguments(parts):
                    self._bind(argument.arg)
                self._visit_all(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        with self._inside("function"):
            for argument in _arguments(node.args):
                self._bind(argument.arg)
            self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.decorator_list)
        self._bind(node.name)
        outer = self.class_name
        with self._inside("types"):
            self._visit_all(getattr(node, "type_params", []))
            self._visit_all([*node.bases, *node.keywords])
            with self._inside("class"):
                self.class_name = node.name
                self.scope.names.update(("__module__", "__qualname__"))
                self._visit_all(node.body)
                self.class_name = outer

    def visit_ListComp(self, node: _Comprehension) -> None:
        first, *others = node.generators
        self.visit(first.iter)  # the one part that is evaluated outside
        with self._inside("comprehension"):
            self._visit_all([first.target, *first.ifs])
            for other in others:
                self._visit_all([other.iter, other.target, *other.ifs])
            if isinstance(node, ast.DictComp):
                self._visit_all([node.key, node.value])
            else:
                self.visit(node.elt)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    # Python 3.12's type parameters and aliases; the node classes don't exist before it

    def visit_TypeVar(self, node: ast.AST) -> None:
        self._bind(getattr(node, "name", ""))
        self.generic_visit(node)

    visit_ParamSpec = visit_TypeVarTuple = visit_TypeVar

    def visit_TypeAlias(self, node: ast.AST) -> None:
        parts = dict(ast.iter_fields(node))
        self.visit(parts["name"])
        with self._inside("types"):
            self._visit_all(parts["type_params"])
            self.visit(parts["value"])


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    extra = [arguments.vararg, arguments.kwarg]
    return [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        *(argument for argument in extra if argument is not None),
    ]
