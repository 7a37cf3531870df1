"""Train many neural networks at once on one HPC allocation.

From Python (docs/python.md): `run`, `load`, `plan` and `simulate` do what the command line does. A name is
loaded when it is first used.
"""

TYPE_CHECKING = (
    False  # as type checkers know it; importing typing takes a moment, in which Ctrl-C is not kept
)
if TYPE_CHECKING:
    from hpcbal.api.ensemble import Ensemble
    from hpcbal.api.planning import plan, simulate
    from hpcbal.api.run import Run, load, run
    from hpcbal.errors import ConfigError, HpcbalError, HpcbalWarning, InputError, RunFailed, RunRefused

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Ensemble",
    "HpcbalError",
    "HpcbalWarning",
    "InputError",
    "Run",
    "RunFailed",
    "RunRefused",
    "load",
    "plan",
    "run",
    "simulate",
]

_MODULE_OF = {
    "ConfigError": "errors",
    "Ensemble": "api.ensemble",
    "HpcbalError": "errors",
    "HpcbalWarning": "errors",
    "InputError": "errors",
    "Run": "api.run",
    "RunFailed": "errors",
    "RunRefused": "errors",
    "load": "api.run",
    "plan": "api.planning",
    "run": "api.run",
    "simulate": "api.planning",
}


if not TYPE_CHECKING:  # with it, type checkers would take any name for one of these

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
