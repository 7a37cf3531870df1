"""The compiled loops, which pyproject.toml cannot declare yet; building them needs a C compiler."""

from setuptools import Extension, setup

LOOPS = (
    "hpcbal.policies.samples._drawing",
    "hpcbal.paramserver.apps._descent",
    "hpcbal.paramserver.apps._gibbs",
    "hpcbal.forecast._replaying",
    "hpcbal.data.operations._resampling",
)

setup(
    ext_modules=[
        # Products and sums are rounded separately, so that all processors get the same results.
        Extension(name, [f"{name.replace('.', '/')}.c"], extra_compile_args=["-ffp-contract=off"])
        for name in LOOPS
    ]
)
