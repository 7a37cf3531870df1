"""The one part that pyproject.toml cannot declare yet: a C module that hpcbal also works without."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Optional: without a compiler or Python's headers the install goes on, and blocks are written
        # with NumPy (hpcbal/dataplane/nontemporal.py).
        Extension("hpcbal.dataplane._streaming", ["hpcbal/dataplane/_streaming.c"], optional=True)
    ]
)
