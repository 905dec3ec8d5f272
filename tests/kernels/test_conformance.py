"""Jupyter's own conformance suite, with Jupyter's own client, on our kernel and on the stock one.

The stock one shows what the suite asks of any kernel: what fails on both is not our guest's fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import jupyter_kernel_test as suite
import pytest
from wired import Wired

PATIENCE_S = 15.0
ISOLATES = pytest.mark.needs("userns", "pidns", "seccomp")


class Subject:
    """What the suite's classes need to start and end their kernel, and what to ask of it."""

    backend: ClassVar[str]
    km: Wired
    kc: Any

    @classmethod
    def setUpClass(cls) -> None:
        cls.km = Wired(cls.backend)
        cls.kc = cls.km.client()
        cls.kc.start_channels(hb=False)  # our guest has none: its end is known by its process
        cls.kc.wait_for_ready(timeout=PATIENCE_S)

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples: ClassVar[list[dict[str, Any]]] = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "import os; os.path.expandu"},  # IPython 8 and 9 name it differently
        {"text": "no_such_name_he", "matches": set()},
    ]
    complete_code_samples = ("1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n  x*2", "for i in range(3):")
    invalid_code_samples = ("import = 7q", "1 +* 2")
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('no')"
    code_execute_result = (
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {
            "code": "class P:\n    def _repr_html_(self): return '<b>it</b>'\nP()",
            "mime": "text/html",
            "result": "<b>it</b>",
        },
    )
    code_display_data = tuple(
        {"code": f"from IPython.display import {name}, display\ndisplay({made})", "mime": mime}
        for name, made, mime in (
            ("HTML", "HTML('<b>test</b>')", "text/html"),
            ("Math", r"Math('\\frac{1}{2}')", "text/latex"),
            ("Markdown", "Markdown('*test*')", "text/markdown"),
            ("JSON", "JSON({'a': [1]})", "application/json"),
            ("SVG", "SVG('<svg/>')", "image/svg+xml"),
            ("Image", r"Image(b'\\x89PNG', format='png')", "image/png"),
            ("Javascript", "Javascript('1')", "application/javascript"),
        )
    )
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    support_iopub_welcome = True

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """A busy machine may need more than the tenth of a second that the suite waits."""
        get_msg = self.kc.iopub_channel.get_msg

        def patient(timeout: float) -> Any:
            return get_msg(timeout=max(timeout, PATIENCE_S))

        with mock.patch.object(self.kc.iopub_channel, "get_msg", patient):
            yield

    def execute_helper(self, *args: Any, **options: Any) -> Any:
        with self._patient():
            return super().execute_helper(*args, **options)  # type: ignore[misc]


class WelcomeSubject(Subject):
    @classmethod
    def setUpClass(cls) -> None:
        cls.km = Wired(cls.backend)
        cls.kc = cls.km.client()


class TestAsAProcess(Subject, suite.KernelTests):
    backend = "process"


class TestWelcomeAsAProcess(WelcomeSubject, suite.IopubWelcomeTests):
    backend = "process"


@ISOLATES
class TestForkedAndIsolated(Subject, suite.KernelTests):
    backend = "forkserver"


@ISOLATES
class TestWelcomeForkedAndIsolated(WelcomeSubject, suite.IopubWelcomeTests):
    backend = "forkserver"


class TestStock(Subject, suite.KernelTests):
    """Without the welcome: a stock kernel has it for its first client only, which is ours."""

    backend = "stock"
    # in ranges it calls this session 0, in tails 1: the suite asks for the same number
    supported_history_operations = ("tail", "search")


@ISOLATES
class TestStockIsolated(TestStock):
    """The same application, executed in a session's isolation."""

    backend = "isolated stock"
