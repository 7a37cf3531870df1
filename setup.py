"""Entry for tools that still look for a setup.py; everything is declared in pyproject.toml."""

from setuptools import setup

setup()
