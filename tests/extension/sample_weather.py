"""A module-based extension: the module itself, and objects of it that are extensions too."""

from replsvc.extension.contract import Extension
from replsvc.extension.quote import quote


def code(opts):
    def body(units):
        def temperature():
            return f"20 {units}"

    return quote(body, units=opts.get("units", "C"))


def description(opts):
    return f"- `temperature()`: now, in {opts.get('units', 'C')}"


class Weather:
    @staticmethod
    def code(opts):
        return f"opts = {dict(opts)!r}"

    @classmethod
    def description(cls, opts):
        return cls.__name__


class Instance:
    def code(self, opts):
        return "x = 1"

    def description(self, opts):
        return None


instance = Instance()
ping = Extension(code="def ping():\n    return 'pong'", description="- `ping()` returns 'pong'")
named = Extension(description="told", name="announcer")
