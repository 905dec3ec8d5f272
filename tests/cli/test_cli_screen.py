from __future__ import annotations

import pytest
import typer

from replsvc.cli.screen import explain, guarded
from replsvc.errors import (
    ConfigError,
    ExtensionError,
    InvalidInputError,
    ReplsvcError,
    StartupTimeoutError,
    StorageError,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("a.", hint="b."), 2),
        (InvalidInputError("a.", hint="b."), 2),
        (ExtensionError("a.", hint="b."), 2),
        (StorageError("a.", hint="b."), 70),
        (StartupTimeoutError("a.", hint="b."), 70),
        (ReplsvcError("a.", hint="b."), 70),
    ],
)
def test_an_error_of_ours_is_one_line_with_what_to_do(error, status, capfd):
    assert explain(error) == status
    assert capfd.readouterr() == ("", "replsvc: a. b.\n")


def test_errors_in_groups_are_all_told(capfd):
    group = ExceptionGroup("x", [StorageError("one."), ExceptionGroup("y", [ConfigError("two.")])])
    assert explain(group) == 70
    assert capfd.readouterr().err == "replsvc: one.\nreplsvc: two.\n"


def test_a_fault_of_ours_is_a_failure_with_its_traceback(capfd):
    # Status 1 would say that the user's code raised.
    assert explain(ExceptionGroup("x", [StorageError("one."), ZeroDivisionError("two.")])) == 70
    said = capfd.readouterr().err
    assert "ZeroDivisionError: two." in said
    assert "please report it" in said


def test_ctrl_c_is_no_error(capfd):
    assert explain(BaseExceptionGroup("x", [KeyboardInterrupt()])) == 130
    assert capfd.readouterr() == ("", "")


def test_a_command_exits_with_what_it_returns_or_raises():
    @guarded
    def command(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    with pytest.raises(typer.Exit) as caught:
        command(None)
    assert caught.value.exit_code == 7
    with pytest.raises(typer.Exit) as caught:
        command(ConfigError("wrong"))
    assert caught.value.exit_code == 2
