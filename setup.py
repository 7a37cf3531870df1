"""The one part that pyproject.toml cannot declare yet: C modules that hpcbal also works without."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Optional: without a compiler or Python's headers the install goes on. Then samples are drawn from
        # lists (hpcbal/policies/samples/drawing.py), topics in Python (hpcbal/paramserver/apps/gibbs.py), the
        # Lasso and full matrices descend with NumPy (descent.py and factors.py there), and forecasts are
        # replayed in Python (hpcbal/forecast/replaying.py).
        Extension("hpcbal.policies.samples._drawing", ["hpcbal/policies/samples/_drawing.c"], optional=True),
        Extension(
            "hpcbal.paramserver.apps._gibbs",
            ["hpcbal/paramserver/apps/_gibbs.c"],
            # Rounded after every operation, as in Python: ranks without this module must sample the same.
            extra_compile_args=["-ffp-contract=off"],
            optional=True,
        ),
        Extension("hpcbal.paramserver.apps._descent", ["hpcbal/paramserver/apps/_descent.c"], optional=True),
        Extension(
            "hpcbal.forecast._replaying",
            ["hpcbal/forecast/_replaying.c"],
            extra_compile_args=["-ffp-contract=off"],  # as above: the same forecast with and without it
            optional=True,
        ),
    ]
)
