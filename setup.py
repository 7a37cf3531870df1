"""The compiled loops, which pyproject.toml cannot declare yet; building them needs a C compiler."""

from setuptools import Extension, setup

ROUNDED = ["-ffp-contract=off"]  # after every operation, so that all machines get the same results

setup(
    ext_modules=[
        Extension("hpcbal.policies.samples._drawing", ["hpcbal/policies/samples/_drawing.c"]),
        Extension("hpcbal.paramserver.apps._descent", ["hpcbal/paramserver/apps/_descent.c"]),
        Extension(
            "hpcbal.paramserver.apps._gibbs",
            ["hpcbal/paramserver/apps/_gibbs.c"],
            extra_compile_args=ROUNDED,
        ),
        Extension("hpcbal.forecast._replaying", ["hpcbal/forecast/_replaying.c"], extra_compile_args=ROUNDED),
    ]
)
