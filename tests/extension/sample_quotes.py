# ruff: noqa: A002, B006, C416, E101, E702, E731, F821, F841, I001, N805, PTH123, RET503, RET504
# ruff: noqa: RUF012, UP050 - these functions have to hold what a linter refuses
# fmt: off
"""Functions to quote. Tests find lines by the comments `# line: NAME`, so lines may move."""

from pathlib import Path as Outside

LIMIT = 3


def plain(greeting, times=2):
    """Becomes the module's docstring."""
    import json

    text = f"{greeting}!" * times

    def fail():
        raise RuntimeError(json.dumps(text))  # line: plain-fail


def one_line(x): y = x + 1; z = y * 2


class Weather:
    class Inner:
        @staticmethod
        def indented(key):
            block = """
  two spaces
no indentation
    	a tab
            """
            header = {"authorization": key}

            def fail():
                raise RuntimeError(block)  # line: indented-fail

    def method(self):
        pass

    def mangled(__secret):
        pass


def make_nested(captured):
    if captured:
        for _ in range(1):

            def nested(value):
                result = [value
    for value in range(value)]
                # a comment left of the body's indentation is fine
# and so is this one
                def fail():
                    raise RuntimeError(result)  # line: nested-fail

    return nested


def closes_over(captured):
    def body():
        print(captured)  # line: captured

    return body


def everything_bound(given, *, other=None):
    import collections.abc
    import os.path as path
    from sys import (
        version,
        version_info as info,
    )

    class Base:
        x = 1
        y = [other for _ in range(x)]
        __hidden = 2

        def look(self):
            return super(), __class__, self.__hidden, Base.x

        @property
        def named(self) -> "Base":
            return self

    class Meta(Base, metaclass=type):
        __slots__ = ()
        where = (__module__, __qualname__)

    with open("/dev/null") as file, open("/dev/null") as (handle, *rest):
        pass
    try:
        raise ValueError
    except ValueError as caught:
        print(caught)
    match given:
        case {"a": inner, **others}:
            print(inner, others)
        case [head, *tail] as whole:
            print(head, tail, whole)
        case Base(x=matched):
            print(matched)
        case _:
            pass
    if (walrus := 3) > 2 and [(escaped := item) for item in range(3)]:
        print(walrus, escaped)
    for (a, b), *c in []:
        print(a, b, c)
    pairs = {k: v for k, v in enumerate(sorted(map(lambda q, /, w=1, *e, r, **t: q, "ab")))}
    annotated: int = 1
    total = 0
    total += annotated
    removed = 1
    del removed
    cache = None

    def remember(a, b: int = 2, /, *args: int, key=total, **kwargs: object) -> int:
        global cache, made_here
        cache = made_here = a
        local: NeverEvaluated = 1
        local += 1

        def deeper():
            nonlocal local
            local = b, args, key, kwargs
            return local

        return deeper

    print(made_here, pairs, handle, rest, file, collections, path, version, info, Meta)
    later()

    async def later_async():
        async with given as g:
            print([x async for x in g], await given, (yield))

    def later():
        return remember, later_async


def everything_unbound(given):
    print(LIMIT)  # line: LIMIT
    Outside()  # line: Outside
    [hidden for hidden in range(3)]
    print(hidden)  # line: hidden
    del only_deleted  # line: only_deleted
    only_annotated: int
    print(only_annotated)  # line: only_annotated
    counter += 1  # line: counter

    class Box:
        attribute = 1
        later: Unknown  # line: Unknown

        def method(self):
            return attribute  # line: attribute

        listed = [attribute_two for _ in ()]  # line: attribute_two

    def inner(argument: Annotated = default):  # line: Annotated
        def deeper():
            global declared
            return declared  # line: declared

        return local_of_inner  # line: local_of_inner

    def other():
        local_of_inner = 1
        return local_of_inner

    lambda q: q + w  # line: w
    print(argument)  # line: argument

    class Mangling:
        def method(self):
            return __given  # line: _Mangling__given

    __given = 1
    f"{interpolated!r:>{width}}"  # line: interpolated
    print(__file__)  # line: __file__


def returns(x):
    if x:
        return x  # line: return


def yields():
    yield 1  # line: yield
    result = yield from ()  # line: yield-from


def makes_nonlocal(count):
    def body():
        nonlocal count  # line: nonlocal
        count = 1

    return body


def inner_nonlocal():
    count = 0

    def bump():
        nonlocal count  # line: inner-nonlocal
        count += 1

    def fine():
        here = 1

        def bump():
            nonlocal here
            here += 1

        return bump


async def coroutine():
    pass


def variadic(*args, **kwargs):
    pass


def wrap(function):
    import functools

    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def tag(function):
    return function


@wrap
def replaced():
    pass


@tag
def decorated():
    pass


a_lambda = lambda: 1


def keyword_only(first, /, second=(1, 2), *, third={"k": [None]}, fourth):
    total = (first, second, third, fourth)


def shadows_builtin(list):
    result = list
